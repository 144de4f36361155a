"""Collectives among the ranks, and the agreements that steer a step."""
