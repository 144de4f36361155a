"""Distributions of the features of a period, as a version carries them from its trainer to servers.

    fine bins of the trainer's newest whole period ─► coarse bins ─► tensors of the version ─┐
    fine bins of a server's requests in that period ─► the same coarse bins ─────────────────┴─► PSI

Coarse bins of a dense number are its quantiles, each under its greatest fine bin; those of a sparse field are
2^COARSE_BITS groups of keys, and one of rows without keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.drift.counts import BIN, EMPTY, HASH_BITS, Counts
from livectr.ingest.drift.psi import psi, quantiles
from livectr.system.errors import MismatchError

I64 = npt.NDArray[np.int64]

PREFIX = "drift."
"""Begin of the names of the tensors in a version."""
COARSE_BITS = 7
_MOST_PERIOD = (1 << 31) - 16
"""Periods from which codes of a period, and of those beside it, may not be int64."""


@dataclass(frozen=True)
class Learned:
    """Distributions of F sparse fields and the dense numbers behind them, in a period.

    Args:
        period: number of the period.
        period_ms: its length. Period p has the examples with a place in the global sequence from
            p · period_ms, ms since 1970.
        counts: rows, and coarse bins, as codes of period 0 (ingest.drift.counts).
    """

    period: int
    period_ms: int
    counts: Counts

    @staticmethod
    def of(period: int, period_ms: int, counts: Counts, fields: int, features: int) -> Learned:
        """Distributions with coarse bins.

        Args:
            period: number of the period.
            period_ms: its length.
            counts: fine bins, as codes of period 0.
            fields: F.
            features: F + dense numbers.
        """
        edges = [np.empty(0, np.int64)]
        for feature in range(1 + fields, 1 + features):
            found = counts.of_feature(feature)
            groups = quantiles(found.counts / max(found.counts.sum(), 1))
            last = np.flatnonzero(np.diff(groups, append=-1))
            edges.append(feature * BIN + np.append(found.codes[last][:-1], BIN - 1))
        return Learned(period, period_ms, _coarse(counts, fields, np.concatenate(edges)))

    def psi(self, served: Counts, fields: int, features: int) -> dict[int, float]:
        """PSI of each feature, by its number from 0, of which both sides have enough rows.

        Args:
            served: fine bins of served rows, as codes of period 0.
            fields: F.
            features: F + dense numbers.
        """
        codes = self.counts.codes
        ours = _coarse(served, fields, codes[np.searchsorted(codes, (1 + fields) * BIN) :])
        rows = self.counts.rows, ours.rows
        found = {
            number: psi(
                self.counts.of_feature(1 + number), ours.of_feature(1 + number), rows, dense=number >= fields
            )
            for number in range(features)
        }
        return {number: value for number, value in found.items() if value is not None}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Tensors of a version, by name."""
        when = np.array([self.period, self.period_ms])
        return {
            f"{PREFIX}period": when,
            f"{PREFIX}codes": self.counts.codes,
            f"{PREFIX}counts": self.counts.counts,
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[Any]], fields: int, features: int) -> Learned | None:
        """Distributions of a version; None: it has none.

        Args:
            arrays: tensors of the version, by name.
            fields: F.
            features: F + dense numbers.

        Raises:
            MismatchError: they are no distributions of these features.
        """
        if PREFIX + "period" not in arrays:
            return None
        try:
            when, codes, counts = (arrays[PREFIX + name] for name in ("period", "codes", "counts"))
        except KeyError as error:
            raise MismatchError(f"the published distributions of features lack {error}") from None
        integers = all(array.dtype == np.int64 for array in (when, codes, counts))
        if not integers or when.shape != (2,) or codes.ndim != 1 or codes.shape != counts.shape:
            raise MismatchError("the published distributions of features have other shapes")
        period, period_ms = when.tolist()
        if abs(period) >= _MOST_PERIOD or period_ms < 1:
            raise MismatchError(f"the published distributions are of a period {period} of {period_ms} ms")
        last = np.arange(2 + fields, 2 + features) * BIN - 1
        rising = bool((np.diff(codes) > 0).all() and (counts > 0).all())
        if not rising or not len(codes) or codes[0] != 0 or codes[-1] >= (1 + features) * BIN:
            raise MismatchError("the published distributions hold no counts of these features")
        if not np.isin(last, codes).all():
            raise MismatchError("the published distributions lack the greatest bin of a dense number")
        return Learned(period, period_ms, Counts(codes, counts))


def _coarse(counts: Counts, fields: int, edges: I64) -> Counts:
    """Counts of fine bins as counts of coarse ones.

    Args:
        counts: as codes of period 0.
        fields: F.
        edges: rising: greatest codes of the coarse bins of dense numbers.
    """
    codes, bins = counts.codes.copy(), counts.codes % BIN
    dense = codes >= (1 + fields) * BIN
    keys = (codes >= BIN) & ~dense & (bins != EMPTY)
    codes[keys] += 1 + ((bins[keys] - 1) >> (HASH_BITS - COARSE_BITS)) - bins[keys]
    codes[dense] = edges[np.searchsorted(edges, codes[dense])]
    return Counts.summed(codes, counts.counts)
