"""The kernel of further layers: its sums are the same on any number of threads and on any CPU.

tests/models/test_fused.py compares it with torch's operations.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from livectr.kernels.network.layers import Layer, forward
from livectr.kernels.network.packed import Factors
from tests.commands import run
from tests.kernels.older_cpu import FEWER, built_for_older, using

PROGRAM = """
import hashlib
import numpy as np
from livectr.kernels.network.layers import Layer, backward, forward

rng, widths, rows, pairs = np.random.default_rng(5), (70, 300, 5, 64, 1), 1057, 7
random = lambda *shape: rng.standard_normal(shape, dtype=np.float32)
layers = [
    Layer(random(a, b), random(b), {factors!r} if min(a, b) >= 16 else None)
    for a, b in zip(widths, widths[1:])
]
inputs = [np.empty((rows, width), np.float32) for width in widths[:-1]]
x, of_x = random(rows, 70 + 1 + pairs), np.empty((rows, 70 + 1 + pairs), np.float32)
out, of_results = np.empty((rows, 1), np.float32), [np.empty_like(one) for one in inputs[1:]]
forward(x, random(70), layers, inputs, out, pairs=pairs)
found = backward(random(rows, 1), layers, inputs, x, of_x, of_results, pairs=pairs)
every = [out, of_x, *inputs, *of_results, *found]
assert all(np.isfinite(one).all() and one.any() for one in every)
print(hashlib.sha256(b"".join(one.tobytes() for one in every)).hexdigest())
"""


def digest(factors: Factors, library: Path | None = None, **environment: str) -> str:
    """Hash of results and gradients that another process computes."""
    return run(
        [sys.executable, "-c", using(library) + PROGRAM.replace("{factors!r}", repr(factors))],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("factors", ["fp32", "bf16"])
def test_the_same_bits_with_any_number_of_threads(factors: Factors) -> None:
    assert digest(factors, LIVECTR_THREADS="1") == digest(factors, LIVECTR_THREADS="3")


@pytest.mark.unsanitized  # compiles units again
@pytest.mark.parametrize("fewer", FEWER)
def test_fp32_has_the_same_bits_on_a_cpu_without_avx512(tmp_path: Path, fewer: str) -> None:
    """A run that began on one make of CPU continues with the same sums on another."""
    older = built_for_older(["network/layers.cpp"], tmp_path, fewer)
    assert digest("fp32", older) == digest("fp32")


def test_arrays_that_do_not_fit_are_refused() -> None:
    weight, bias, x = np.ones((4, 2), np.float32), np.ones(2, np.float32), np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match="contiguous float32, not float64"):
        forward(x, np.ones(4), [Layer(weight, bias, None)], [x.copy()], np.empty((3, 2), np.float32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="contiguous rows of float32"):
        forward(x.T, bias, [Layer(weight, bias, None)], [x.copy()], np.empty((3, 2), np.float32))
