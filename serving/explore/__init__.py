"""Exploration: orders that are drawn around the values, with known propensities."""
