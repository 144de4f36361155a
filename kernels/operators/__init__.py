"""Device code of the feature operators."""
