"""A run that is carried over to a changed pipeline: rows, weights, and the checkpoint that has them."""
