"""Records that cannot be used: counted, explained, kept, and sent to a topic."""
