"""Kernels of requests: bytes into columns."""
