"""Kernels of the networks: attention of DIN, bf16 products."""
