"""Distributions of features, and how far two of them are apart."""
