"""Kernels of the networks: attention of DIN, matrix products."""
