"""Zipf's law."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def zipf(ids: int, exponent: float) -> NDArray[np.float64]:
    """Cumulated probabilities f64[ids] of ids 0, 1, … after Zipf's law."""
    weight = np.arange(1, ids + 1) ** -exponent
    return np.cumsum(weight / weight.sum())
