"""Number of distinct keys among draws after Zipf's law."""

from __future__ import annotations

import numpy as np

HEAD, TAIL = 1024, 400
"""Ids that are summed one by one, and intervals of equal ratio for the rest."""


def distinct(draws: float, ids: float, exponent: float) -> float:
    """Expected number of distinct ids: Σ 1 − (1 − p_i)^draws, with p_i ∝ i^−exponent. O(HEAD + TAIL).

    Args:
        draws: number of keys.
        ids: number of ids that there are.
        exponent: of Zipf's law, at least 0.
    """
    ids = max(1.0, ids)
    head = min(int(ids), HEAD)
    edges = np.arange(0.5, head + 1)
    if ids > head + 0.5:
        edges = np.r_[edges, np.geomspace(head + 0.5, ids + 0.5, TAIL + 1)[1:]]
    width = np.diff(edges)
    middle = np.r_[np.arange(1.0, head + 1), np.sqrt(edges[head:-1] * edges[head + 1 :])]
    weight = middle**-exponent
    likely = np.minimum(weight / (weight * width).sum(), 1 - 1e-12)
    return float((width * -np.expm1(draws * np.log1p(-likely))).sum())
