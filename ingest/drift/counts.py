"""Counts of the values of features, in fine bins that no data changes: sums of counts have no order.

    a dense number    its sign, exponent and 5 bits of mantissa: a bin is 3 % wide, and 0 has one of its own
    a sparse field    10 bits of a hash of each key; a row without keys counts as such

A code is `period · 2^32 + feature · 2^16 + bin`. Feature 0 counts the rows, 1 … F are sparse fields, and the
dense numbers follow.

The fine bins are grouped only where distributions are compared (ingest.drift.psi), by what the reference
holds then. Quantile sketches would do with fewer bins, but what they hold depends on the order of what came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.plan.features import Features

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

BIN = 1 << 16
"""Codes of a feature."""
PERIOD = 1 << 32
"""Codes of a period."""
EMPTY = 0
"""Bin of rows without keys."""
HASH_BITS = 10
MANTISSA_BITS = 5
MOST_FEATURES = 1024
"""Most features that are counted: they take at most some 80 KB each, in memory and in a checkpoint."""

_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Counts:
    """Counts by code.

    Args:
        codes: int64[c], rising.
        counts: [c], int64 or float64.
    """

    codes: I64
    counts: npt.NDArray[Any]

    @staticmethod
    def none() -> Counts:
        """No counts."""
        return Counts(np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def of(codes: I64) -> Counts:
        """Counts of codes int64[n] in any order."""
        return Counts(*np.unique(codes, return_counts=True))

    @staticmethod
    def summed(codes: I64, counts: I64) -> Counts:
        """Counts int64[n] by codes int64[n], which may repeat and come in any order."""
        found, place = np.unique(codes, return_inverse=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, place, counts)
        return Counts(found, sums)

    @staticmethod
    def total(parts: list[Counts]) -> Counts:
        """Sum of counts, which are all int64 or all float64."""
        if not parts:
            return Counts.none()
        codes, place = np.unique(np.concatenate([part.codes for part in parts]), return_inverse=True)
        summed = np.zeros(len(codes), np.result_type(*(part.counts for part in parts)))
        for part, at in zip(parts, np.split(place, np.cumsum([len(part) for part in parts])), strict=False):
            summed[at] += part.counts  # a part has each code once
        return Counts(codes, summed)

    def __len__(self) -> int:
        return len(self.codes)

    def between(self, first: int, end: int) -> Counts:
        """Counts of the codes from `first` up to `end`, which is left out."""
        a, b = np.searchsorted(self.codes, [first, end])
        return Counts(self.codes[a:b], self.counts[a:b])

    def of_period(self, period: int) -> Counts:
        """Counts of a period, with the codes of period 0."""
        found = self.between(period * PERIOD, (period + 1) * PERIOD)
        return Counts(found.codes - period * PERIOD, found.counts)

    def of_feature(self, feature: int) -> Counts:
        """Counts of the bins of a feature in period 0, or of the rows (0)."""
        found = self.between(feature * BIN, (feature + 1) * BIN)
        return Counts(found.codes - feature * BIN, found.counts)

    @property
    def rows(self) -> float:
        """Number of rows in period 0."""
        return float(self.of_feature(0).counts.sum())


def codes_of(features: Features, periods: I64) -> I64:
    """Codes of n rows, each once for its row, its keys and its dense numbers.

    Args:
        features: of the rows.
        periods: int64[n], of each row.

    Returns:
        int64[m], in no order.
    """
    base = periods * PERIOD
    rows, fields = features.rows, features.fields
    cells = (base + (1 + np.arange(fields)[:, None]) * BIN).ravel()
    lengths = np.diff(features.offsets)
    with np.errstate(over="ignore"):
        words = features.keys.view(np.uint64)
        hashed = ((words ^ (words >> np.uint64(32))) * _MIX) >> np.uint64(64 - HASH_BITS)
    keys = np.repeat(cells, lengths) + 1 + hashed.astype(np.int64)
    dense = (base + (1 + fields) * BIN)[:, None] + np.arange(features.dense.shape[1]) * BIN
    numbers = dense + dense_bins(features.dense)
    return np.concatenate([base, keys, cells[lengths == 0] + EMPTY, numbers.ravel()]) if rows else base


def dense_bins(numbers: npt.NDArray[np.float32]) -> I64:
    """Bins of finite numbers float32[…], rising with them; -0 is 0."""
    bits = (numbers + np.float32(0)).view(np.int32)
    ordered = np.where(bits < 0, ~bits, bits | np.int32(-(1 << 31))).view(np.uint32)
    bins: I64 = (ordered >> np.uint32(23 - MANTISSA_BITS)).astype(np.int64)
    return bins
