"""Library of the networks' fp32 products on a CPU: torch's own (MKL), or the packed kernel.

MKL has the faster products on Intel's CPUs. On AMD's it computes with AVX2, and slowly where rows are no
whole cache lines apart: the packed kernel (`kernels.network.packed`) uses AVX-512 there if the CPU has it,
and FMA if not. Its bits are the same on every CPU.

A rule of the CPU's maker and instructions chooses, not a clock: times differ from run to run, and the bits of
a model must not. `rates` measures both, so that a log can tell where the rule is wrong.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from livectr.kernels.network import packed
from livectr.system.cpu import maker

Library = Literal["torch", "packed"]
_active = threading.local()  # a publisher's thread must not change its bits with the step that runs beside it


@functools.cache
def suited() -> Library:
    """Library that suits this CPU; compiles the kernel on AMD's."""
    return "packed" if maker() == "AuthenticAMD" and packed.native("fp32") else "torch"


@contextmanager
def library(name: Library) -> Iterator[None]:
    """Context in which this thread's layers use a library; call the backward pass inside, too."""
    before = packs()
    _active.packs = name == "packed"
    try:
        yield
    finally:
        _active.packs = before


def packs() -> bool:
    """True if layers use the packed kernel for fp32 products."""
    return getattr(_active, "packs", False)


def rates(rows: int = 2048, width: int = 256, times: int = 8) -> dict[Library, float]:
    """GFLOP/s of either library, the best of some products f32[rows, width] × f32[width, width]."""
    a, b, out = torch.ones(rows, width), torch.ones(width, width), torch.empty(rows, width)
    ways: dict[Library, Callable[[], object]] = {
        "torch": lambda: torch.mm(a, b, out=out),
        "packed": lambda: packed.product(a.numpy(), b.numpy(), out.numpy(), "fp32"),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(times):
        for name, multiply in ways.items():
            start = time.perf_counter()
            multiply()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: 2e-9 * rows * width * width / seconds for name, seconds in best.items()}
