"""Predictions before training, and how good they are."""
