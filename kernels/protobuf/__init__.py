"""Kernels of Protobuf messages."""
