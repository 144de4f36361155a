"""Planted log of categories and numbers, like Criteo's: 26 categories of rare ids, 13 heavy-tailed numbers.

Numbers are lognormal, and those of a row go together. Medians are 1e-6 to 1e9, and a null may tell as much as
a value. In z, the standardised logarithm, a number adds to the logit: a line, tanh, a hill, a band, nothing.

Every learner gets a number twice, as docs/features.md says: dense (counts by log1p, rates as they are; a null
is 0), and as a field of bins, one for each doubling, with a bin for nulls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.zipf import zipf

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

SIZES = (
    *(1_000_000, 200_000, 100_000, 50_000, 50_000, 20_000, 10_000, 10_000, 5_000, 5_000, 2_000, 1_000, 1_000),
    *(500, 500, 300, 200, 100, 100, 50, 30, 20, 10, 10, 4, 3),
)
"""Ids of each category; most ids of the large ones are rare."""
EXPONENT = 1.15
"""Exponent of Zipf's law."""
RATE, FIRST, PAIRS, NUMBER, NULL = -1.3, 1.0, 0.3, 0.3, 0.2
"""Log odds of a click, and sizes of the logit's parts: ids, pairs of ids, a number, its null."""


@dataclass(frozen=True)
class Number:
    """Law of a number.

    Args:
        middle: median, a power of e; below 0: a rate.
        nulls: share of nulls.
        shape: of its part of the logit.
    """

    middle: float
    nulls: float
    shape: Callable[[F64], F64]


def _line(z: F64) -> F64:
    return z


def _tanh(z: F64) -> F64:
    found: F64 = 1.2 * np.tanh(z)
    return found


def _hill(z: F64) -> F64:
    return 0.7 * (1 - z * z)


def _band(z: F64) -> F64:
    found: F64 = np.where(np.abs(z - 0.5) < 0.4, 1.5, -0.5)
    return found


def _nothing(z: F64) -> F64:
    return np.zeros_like(z)


NUMBERS = (
    Number(1, 0.45, _line),
    Number(3, 0, _tanh),
    Number(2, 0.21, _hill),
    Number(1.5, 0.22, _line),
    Number(-13, 0.03, _band),
    Number(4, 0.22, _tanh),
    Number(20, 0.04, _line),
    Number(2, 0, _nothing),
    Number(5, 0.04, _hill),
    Number(-8, 0.45, _tanh),
    Number(0.5, 0.04, _line),
    Number(0, 0.77, _band),
    Number(6, 0.22, _tanh),
)
"""Nulls are as often as in Criteo's log."""
BOUNDS = 2.0 ** np.arange(-24, 40)


@dataclass(frozen=True)
class Rows:
    """Rows of the planted log.

    Attributes:
        fields: name → ids i64[n] of categories and bins.
        dense: f32[n, 13].
        label: f32[n] in {0, 1}.
        logit: f64[n], true logits.
    """

    fields: dict[str, I64]
    dense: NDArray[np.float32]
    label: NDArray[np.float32]
    logit: F64


def planted_numbers(seed: int, rows: int) -> Rows:
    """Truth and rows of a seed."""
    rng = np.random.default_rng(seed)
    fields: dict[str, I64] = {}
    logit, latent, dense = np.full(rows, RATE), [], []
    for f, size in enumerate(SIZES, start=1):
        ids = np.minimum(np.searchsorted(zipf(size, EXPONENT), rng.random(rows)), size - 1)
        fields[f"C{f}"] = ids
        logit += rng.normal(0, FIRST / np.sqrt(len(SIZES)), size)[ids]
        latent.append(rng.normal(size=size)[ids])
    for left, right in zip(latent[::2], latent[1::2], strict=True):
        logit += PAIRS / np.sqrt(len(latent) / 2) * left * right
    together = rng.normal(size=rows)
    for d, number in enumerate(NUMBERS, start=1):
        z = 0.5 * together + np.sqrt(0.75) * rng.normal(size=rows)
        value = np.exp(number.middle + rng.uniform(0.8, 2.5) * z)
        value = value if number.middle < 0 else np.floor(value)
        null = rng.random(rows) < number.nulls
        sign = rng.choice([-1, 1])
        logit += np.where(null, rng.normal(0, NULL), NUMBER * sign * number.shape(z))
        fields[f"I{d}_bin"] = np.where(null, -1, np.searchsorted(BOUNDS, value, side="right"))
        dense.append(np.where(null, 0, value if number.middle < 0 else np.log1p(value)))
    label = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return Rows(fields, np.stack(dense, axis=1).astype(np.float32), label, logit)
