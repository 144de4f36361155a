"""Features that are computed once, stored, and read by every training run."""
