"""Timing of a device's queue, and what passes between a host and its device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from livectr.kernels.runtime.device import CudaDevice, Device, EmulatedDevice, Mark

Target = type[CudaDevice] | type[EmulatedDevice]
Rows = list[dict[str, object]]
"""Rows of a benchmark's table."""


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


@dataclass
class Traffic:
    """Calls that a host made to its devices.

    Attributes:
        allocations: calls for device memory or pinned memory.
        up: bytes copied to the device.
        down: bytes copied from it.
        waits: times that the thread which counts waited for a queue, or for an event of PyTorch.
        waited_s: seconds of these waits. Other threads read ahead meanwhile.
    """

    allocations: int = 0
    up: int = 0
    down: int = 0
    waits: int = 0
    waited_s: float = 0.0


@contextmanager
def traffic(target: Target) -> Iterator[Traffic]:
    """Count what all devices of a class are asked while this is open."""
    found, own = Traffic(), threading.get_ident()

    def counted(owner: type, name: str, note: Callable[..., None]) -> Any:
        real = getattr(owner, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = real(self, *args, **options)
            note(time.perf_counter() - start, *args, **options)
            return result

        return patch.object(owner, name, call)

    def allocated(spent_s: float, nbytes: int) -> None:
        found.allocations += 1

    def uploaded(spent_s: float, address: int, source: Any) -> None:
        found.up += source.nbytes

    def downloaded(spent_s: float, to: Any, address: int) -> None:
        found.down += to.nbytes

    def waited(spent_s: float) -> None:
        if threading.get_ident() == own:
            found.waits += 1
            found.waited_s += spent_s

    notes = {"memory": allocated, "staging": allocated, "upload": uploaded, "download": downloaded}
    with ExitStack() as stack:
        for name, note in notes.items():
            stack.enter_context(counted(target, name, note))  # type: ignore[arg-type]
        for owner, name in ((target, "synchronize"), (Mark, "_reach"), (torch.cuda.Event, "synchronize")):
            stack.enter_context(counted(owner, name, waited))
        yield found
