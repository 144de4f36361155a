"""Bandwidth between ranks, measured in steps of half a decade, so that it is mostly equal from run to run.

Ranks in one network namespace of one machine have no link between them: bytes pass through memory. Nothing is
measured there, and what depends on the bandwidth is the same in every run.
"""

from __future__ import annotations

import math
import time
import uuid
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.trainer.comm.collectives import Collectives

ENOUGH_S = 2e-2
"""An all-to-all of this length says enough: latency, and a wait for a busy core, are little of it."""
FIRST, MOST = 1 << 18, 1 << 22
"""Numbers that a rank sends in the first and in the longest all-to-all."""
TIMES = 5


def link_gbit(collectives: Collectives) -> float | None:
    """Gbit/s that the slowest rank sends and receives at once, the same on every rank. Collective.

    None where all ranks share a network namespace.
    """
    places = collectives.all_gather(_place(collectives.rank), "link")
    if (places == places[0]).all():
        return None
    numbers = FIRST
    while (seconds := _seconds(collectives, numbers)) < ENOUGH_S and numbers < MOST:
        numbers *= 4
    return rounded(8e-9 * _width(collectives) * numbers / seconds)


def rounded(gbit: float) -> float:
    """Nearest of …, 0.1, 0.316, 1, 3.16, 10, 31.6, … Gbit/s, by the logarithm."""
    return float(10 ** (round(2 * math.log10(gbit)) / 2))


def _place(rank: int) -> NDArray[np.int64]:
    """Boot of the kernel and network namespace, i64[3].

    Where the kernel tells neither, no two ranks share a place.
    """
    try:
        boot = uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
        namespace = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return np.array([rank, -1, -1], np.int64)
    return np.append(np.frombuffer(boot, np.int64), namespace)


def _width(collectives: Collectives) -> int:
    return 2 if collectives.wire == "bf16" else 4


def _seconds(collectives: Collectives, numbers: int) -> float:
    """Seconds of an all-to-all in which each rank sends `numbers` floats to the others.

    A rank's time is its best of TIMES; the result is that of the slowest rank.
    """
    each = numbers // (collectives.world - 1)
    sizes = [0 if r == collectives.rank else each for r in range(collectives.world)]
    outgoing = [torch.zeros(size, device=collectives.device) for size in sizes]
    best = math.inf
    for _ in range(TIMES):
        collectives.all_gather(np.zeros(1), "link")  # ranks begin together
        start = time.perf_counter()
        received = collectives.all_to_all(outgoing, sizes, {"link": sum(sizes)})
        torch.cat(received).sum().item()  # waits for a GPU
        best = min(best, time.perf_counter() - start)
    return float(collectives.all_gather(np.array([best]), "link").astype(np.float64).max())
