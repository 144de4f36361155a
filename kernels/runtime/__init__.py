"""Compiler, devices, memory and threads of generated and hand-written kernels."""
