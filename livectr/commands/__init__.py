"""The commands: their flags, and what they do."""
