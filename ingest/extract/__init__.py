"""Feature extraction: a plan as compiled code, for the host and for a GPU."""
