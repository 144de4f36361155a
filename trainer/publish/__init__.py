"""Versions on their way to Redis."""
