"""Contestants in turns (A B A B): steps a second of all ranks together, and bytes on the loopback device."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

Steps = Callable[[], object]
"""A number of steps, the same number in every contestant and round."""


@dataclass(frozen=True)
class Measured:
    """Median seconds of a round, and the least bytes of a round on the loopback device.

    Bytes are summed over all ranks and include TCP's headers. Other processes can only add bytes, so the
    least value is the nearest.
    """

    seconds: float
    loopback: float


def in_turns(contestants: Mapping[str, Steps], rounds: int, warm_up: int = 2) -> dict[str, Measured]:
    """Every contestant once a round, after `warm_up` rounds that do not count. Collective."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    loopback: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, steps in contestants.items():
            gc.collect()
            _barrier()
            before, start = _loopback_bytes(), time.perf_counter()
            steps()
            _barrier()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - start)
                loopback[name].append(_loopback_bytes() - before)
    return {name: Measured(statistics.median(seconds[name]), min(loopback[name])) for name in contestants}


def _barrier() -> None:
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(torch.zeros(1))


def _loopback_bytes() -> int:
    """Bytes sent over the loopback device since the machine started; 0 where the system does not tell."""
    counters = Path("/proc/net/dev")
    if not counters.exists():
        return 0
    for line in counters.read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0
