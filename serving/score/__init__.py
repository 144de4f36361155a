"""Scores of candidates by the models of a version."""
