"""Checkpoints: write, restore, warm start."""
