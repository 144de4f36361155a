"""Drift of features while a run learns."""
