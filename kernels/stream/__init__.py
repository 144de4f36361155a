"""Kernels of the stream: label join, histories, event time, JSON depth."""
