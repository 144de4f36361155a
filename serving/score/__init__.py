"""Answers of a version: the stages look up → score, for both roles."""
