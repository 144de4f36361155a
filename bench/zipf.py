"""Zipf's law."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def zipf(ids: int, exponent: float) -> NDArray[np.float64]:
    """Cumulated probabilities f64[ids] of ids 0, 1, … after Zipf's law."""
    weight = np.arange(1, ids + 1) ** -exponent
    return np.cumsum(weight / weight.sum())


def zipf_ids(
    rng: np.random.Generator, n: int | NDArray[np.int64], shape: int | tuple[int, ...]
) -> NDArray[np.int64]:
    """Random ids int64[shape] in [0, n), id k with probability about 1 / (k + 1)."""
    ranks: NDArray[np.int64] = np.exp(rng.random(shape) * np.log(np.add(n, 1))).astype(np.int64) - 1
    return np.minimum(ranks, np.subtract(n, 1))
