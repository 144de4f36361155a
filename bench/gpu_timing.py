"""Timing of a device's queue."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from livectr.kernels.runtime.device import CudaDevice, Device, EmulatedDevice

Target = type[CudaDevice] | type[EmulatedDevice]


def once(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def seconds(device: Device, call: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call with all its queued work, after a warm-up call."""
    call()
    device.synchronize()
    times_s = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        device.synchronize()
        times_s.append(time.perf_counter() - start)
    return float(np.median(times_s))
