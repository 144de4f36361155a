"""Drift of item vectors: how far those of a sample have moved since each version that computed some.

The sample has the items whose hash is below a limit, the same on any number of ranks: all of a small
catalogue, else at least `SAMPLE` and about twice as many. At a version its vectors are computed and compared
with those of each earlier version that still has vectors in use, as in trainer.content.drift, with the same
bound. An item whose row changed meanwhile is left out, since its vector is computed with every version. A
version of which fewer than `SAMPLE` items can be compared counts as moved.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.ingest.content.store import shard_of
from livectr.ingest.join.lookup import LookupTable
from livectr.trainer.content.drift import HASHES, SAMPLE

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Sample:
    """Vectors f32[n, dim] of items i64[n], ascending; whole: of all items."""

    ids: I64
    vectors: F32
    whole: bool

    def without(self, ids: I64) -> _Sample:
        stay = ~np.isin(self.ids, ids)
        return self if stay.all() else _Sample(self.ids[stay], self.vectors[stay], self.whole)


class ItemDrift:
    """Sample of the items; of rank 0.

    Args:
        tolerance: greatest movement of a vector that stays.

    Attributes:
        most: greatest movement of a version's vectors that stay.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._limit = 0
        self._ids: I64 = np.empty(0, np.int64)
        self._now: _Sample | None = None
        self._kept: dict[int, _Sample] = {}
        """Version's number → vectors of the sample at that version."""
        self.most = 0.0

    def sample(self, table: LookupTable, since: int) -> I64:
        """Items of the sample, ascending.

        Args:
            table: look-up table of the items.
            since: generation of the table's rows in the version before; 0: the version is complete.
        """
        if not since:  # a complete version: nothing of the versions before stays
            self._kept = {}
            return self._drawn(table)
        keys, alive = table.touched(since)
        self._kept = {number: held.without(keys) for number, held in self._kept.items()}
        own = keys[alive & (shard_of(keys, HASHES) < self._limit)]
        self._ids = np.union1d(np.setdiff1d(self._ids, keys), own)
        most, least = 4 * SAMPLE, 0 if self._limit == HASHES else 3 * SAMPLE // 2
        return self._ids if least <= len(self._ids) <= most else self._drawn(table)

    def _drawn(self, table: LookupTable) -> I64:
        """Draw another sample."""
        ids = table.keys
        hashes, few = shard_of(ids, HASHES), len(ids) <= 2 * SAMPLE
        self._limit = HASHES if few else int(np.partition(hashes, 2 * SAMPLE)[2 * SAMPLE])
        self._ids = np.sort(ids[hashes < self._limit])
        return self._ids

    def moved(self, ids: I64, vectors: F32, used: Collection[int]) -> set[int]:
        """Numbers of versions whose vectors have moved beyond the tolerance.

        Args:
            ids: of `sample`, without items that cannot be extracted.
            vectors: their present vectors.
            used: numbers of versions that vectors in use are of.
        """
        self._now = _Sample(ids, vectors, self._limit == HASHES)
        self._kept = {number: held for number, held in self._kept.items() if number in used}
        scale = np.sqrt(np.square(vectors, dtype=np.float64).sum() / max(len(ids), 1))
        far, self.most = set[int](), 0.0
        for number, held in self._kept.items():
            _, here, there = np.intersect1d(ids, held.ids, assume_unique=True, return_indices=True)
            apart = np.linalg.norm(vectors[here] - held.vectors[there], axis=1)
            ratio = float(apart.max(initial=0.0) / scale) if scale > 0 else 0.0
            if ratio > self._tolerance or (len(here) < SAMPLE and not (held.whole and self._now.whole)):
                far.add(number)
            else:
                self.most = max(self.most, ratio)
        return far

    def published(self, number: int) -> None:
        """Keep the sample's vectors of the version that the last `moved` was about."""
        assert self._now is not None
        self._kept[number] = self._now
