"""Limits of this machine, measured in the same run: matrix products, and memory bandwidth."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from bench.timed import timed

ROWS = 4096


def best_of(work: Callable[[], object], rounds: int) -> float:
    """Median seconds of a call, after a warm-up call."""
    work()
    return statistics.median(timed(work) for _ in range(rounds))


def product_flops(sizes: Sequence[int], rounds: int) -> float:
    """FLOP/s of a chain of float32 products f32[ROWS, a] × f32[a, b] with the sizes of layers: no reading, no
    activations, memory allocated before."""
    pairs = list(pairwise(sizes))
    x = [torch.rand(ROWS, a) for a, _ in pairs]
    w = [torch.rand(a, b) for a, b in pairs]
    out = [torch.empty(ROWS, b) for _, b in pairs]

    def products() -> None:
        for a, b, c in zip(x, w, out, strict=True):
            torch.mm(a, b, out=c)

    return ROWS * flops(sizes) / best_of(products, rounds)


def flops(sizes: Sequence[int]) -> int:
    """FLOPs of a row forward: a multiplication and an addition for each weight."""
    return sum(2 * a * b for a, b in pairwise(sizes))


def read_bandwidth(megabytes: int, rounds: int) -> float:
    """Bytes a second that torch sums up of memory larger than a cache."""
    numbers = torch.from_numpy(np.ones(megabytes << 18, np.float32))
    return numbers.nbytes / best_of(numbers.sum, rounds)
