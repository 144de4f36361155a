"""Device of the tests in this folder: a GPU, or its emulation where LIVECTR_DRY is set.

`bench/gpu_kit` sets it for `--dry`, so that the same files are known to run before a GPU is at hand.
"""

from __future__ import annotations

import os

import pytest

from livectr.kernels.runtime.device import CudaDevice, EmulatedDevice

DRY = bool(os.environ.get("LIVECTR_DRY"))
TARGET: type[CudaDevice] | type[EmulatedDevice] = EmulatedDevice if DRY else CudaDevice
TORCH = "cpu" if DRY else "cuda:0"
"""PyTorch's name of the device."""

needs_streams = pytest.mark.skipif(DRY, reason="the emulated device has no streams")


def size(card: int, dry: int) -> int:
    """Size of a workload: a GPU's, or a small one for the emulation."""
    return dry if DRY else card
