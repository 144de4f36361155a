"""Publish log: which keys each version changed, so that a restarted trainer resumes with deltas."""
