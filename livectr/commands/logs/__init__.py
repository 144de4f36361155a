"""Commands that write logs and what is computed from them once."""
