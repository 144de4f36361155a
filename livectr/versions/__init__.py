"""Versions of a namespace: what is there, hold, release, rollback."""
