"""Dead letters: records that cannot be used are counted, explained, kept and sent to a topic."""
