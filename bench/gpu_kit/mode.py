"""Mode of the kit's processes: the GPU, or with `--dry` its emulation at small sizes."""

from __future__ import annotations

import os

from bench.gpu_timing import Target
from livectr.kernels.runtime.device import CudaDevice, EmulatedDevice

DRY = "LIVECTR_DRY"
"""Variable of the environment, for all processes of the kit and for tests/gpu."""


def dry() -> bool:
    """Return true in a dry run."""
    return bool(os.environ.get(DRY))


def target() -> Target:
    """Device of kernels."""
    return EmulatedDevice if dry() else CudaDevice


def torch_device() -> str:
    """PyTorch's name of the device."""
    return "cpu" if dry() else "cuda:0"


def size(card: int, small: int) -> int:
    """Size of a workload: a GPU's, or a dry run's."""
    return small if dry() else card
