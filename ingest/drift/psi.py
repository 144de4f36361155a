"""Population stability index (PSI) of two distributions of a feature.

    PSI = Σ_g (q_g − p_g) · ln(q_g / p_g)      p: shares of the reference, q: of the newer rows

It is symmetric, and the same for sparse and dense features once their bins are grouped. Usual bounds are .1
(moved a little) and .25 (moved). TFDV's L∞ of a sparse field sees its most common value alone, and JS has no
bounds that people know.

    dense     10 groups, by quantiles of the reference
    sparse    a group for each key with 2 % of either side, one for rows without keys, one for the others:
              ads that come and go are no drift, but an ad that takes a share is

For equal distributions of n and m rows and G groups, PSI / (1/n + 1/m) is χ² with G − 1 degrees of freedom
(Yurdakul and Naranjo 2020): its mean is (G − 1) (1/n + 1/m). Nothing is said where that exceeds MOST_BIAS.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.drift.counts import EMPTY, Counts

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

QUANTILES = 10
COMMON = 0.02
"""Share from which a key has a group."""
MOST_BIAS = 0.02
"""Largest mean of the PSI of equal distributions, a fifth of the lower usual bound."""


def psi(reference: Counts, newest: Counts, rows: tuple[float, float], *, dense: bool) -> float | None:
    """PSI of a feature.

    Args:
        reference: counts of its bins.
        newest: counts of its bins.
        rows: of both sides.
        dense: its bins are those of numbers.

    Returns:
        At least 0; None: there are too few rows.
    """
    if not len(reference) or not len(newest) or not all(rows):
        return None
    bins: I64 = np.union1d(reference.codes, newest.codes)
    counts = np.zeros((2, len(bins)))
    for side, found in zip(counts, (reference, newest), strict=True):
        side[np.searchsorted(bins, found.codes)] = found.counts
    shares = counts / counts.sum(axis=1, keepdims=True)
    group = quantiles(shares[0]) if dense else _common(bins, shares)
    groups = int(group.max()) + 1
    if (groups - 1) * sum(1 / n for n in rows) > MOST_BIAS:
        return None
    p, q = (_smoothed(np.bincount(group, side, groups), n) for side, n in zip(shares, rows, strict=True))
    return float(((q - p) * np.log(q / p)).sum())


def quantiles(p: F64) -> I64:
    """Groups of bins by the share of the reference below the middle of each, numbered from 0."""
    below = np.cumsum(p) - p / 2
    found: I64 = np.unique(
        np.minimum(below * QUANTILES, QUANTILES - 1).astype(np.int64), return_inverse=True
    )[1]
    return found


def _common(bins: I64, shares: F64) -> I64:
    """Groups of keys: one of its own for each that is common on a side."""
    alone = (shares.max(axis=0) >= COMMON) | (bins == EMPTY)
    return np.where(alone, np.cumsum(alone), 0) if not alone.all() else np.arange(len(bins))


def _smoothed(shares: npt.NDArray[Any], rows: float) -> F64:
    """Shares with half a row more in each group (Jeffreys' prior), so that none is 0."""
    found: F64 = (shares * rows + 0.5) / (rows + 0.5 * len(shares))
    return found
