"""Feature extraction: a feature plan as compiled code, for the host and for a GPU."""
