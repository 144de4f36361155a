"""The workloads of issue and paper, and their batches, the same for every contestant.

    P   26 categorical fields of Zipf 1.1 to 1.3 and about 1M ids, 13 numbers, K = 16, MLP 256-128, batch 4096
    W   200 fields, 950 keys a sample (DES §6): two of three fields have one key, the others a list; K = 8,
        H₁ = 256, batch 4096

Static tables need ids 0, 1, …; ours takes any 64-bit key. Ids are made from keys outside the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bench.planted import MIX, Planted
from bench.zipf import zipf
from livectr.ingest.plan.features import Features

F32 = NDArray[np.float32]
UNMIX = np.uint64(pow(int(MIX), -1, 2**64))


@dataclass(frozen=True)
class Batch:
    """A rank's own examples: `features` with keys, `ids` i64[nnz] of the same keys, label f32[b]."""

    features: Features
    ids: NDArray[np.int64]
    label: F32


@dataclass(frozen=True)
class Workload:
    """F fields of `cardinality` ids each, with `lengths[f]` keys a sample on average (1: exactly one)."""

    name: str
    cardinality: tuple[int, ...]
    dense: int
    dim: int
    hidden: tuple[int, ...]
    batch: int = 4096
    exponent: tuple[float, float] = (1.1, 1.3)
    lengths: tuple[float, ...] = ()
    seed: int = 1

    @property
    def fields(self) -> int:
        """F."""
        return len(self.cardinality)

    def __str__(self) -> str:
        keys = f", {sum(self.lengths):.0f} keys a sample" if self.lengths else ""
        numbers = f"+{self.dense}" if self.dense else ""
        return (
            f"{self.name}, {self.fields}{numbers} fields{keys}, {sum(self.cardinality):,} ids, "
            f"K = {self.dim}, batch {self.batch}"
        )

    def batches(self, rank: int, world: int, count: int) -> list[Batch]:
        """`count` batches of this rank's share of the rows."""
        rng = np.random.default_rng([self.seed, rank])
        return [self._batch(rng, self.batch // world) for _ in range(count)]

    def _batch(self, rng: np.random.Generator, rows: int) -> Batch:
        if self.lengths:
            features, label = self._lists(rng, rows)
        else:
            features, label, _ = self._planted.batch(rng, rows)
        ids = (features.keys.view(np.uint64) * UNMIX).view(np.int64)
        return Batch(features, ids, label)

    @cached_property
    def _planted(self) -> Planted:
        return Planted(self.cardinality, self.dense, exponent=self.exponent, seed=self.seed)

    @cached_property
    def _popularity(self) -> list[NDArray[np.float64]]:
        exponents = np.linspace(*self.exponent, self.fields)
        return [zipf(n, s) for n, s in zip(self.cardinality, exponents, strict=True)]

    def _lists(self, rng: np.random.Generator, rows: int) -> tuple[Features, F32]:
        """Lists have 0 to 2 · mean keys; labels are drawn without a truth."""
        lengths = [
            rng.integers(0, round(2 * mean) + 1, rows) if mean != 1 else np.ones(rows, np.int64)
            for mean in self.lengths
        ]
        draws = [rng.random(int(n.sum())) for n in lengths]
        pairs = zip(self._popularity, draws, strict=True)
        ids = [np.minimum(np.searchsorted(cdf, u), len(cdf) - 1) for cdf, u in pairs]
        offsets = np.r_[0, np.cumsum(np.concatenate(lengths))].astype(np.int32)
        keys = np.concatenate(ids).astype(np.uint64) * MIX
        dense = np.zeros((rows, self.dense), np.float32)
        return Features(rows, offsets, keys.view(np.int64), dense), (rng.random(rows) < 0.2).astype(
            np.float32
        )


def _wide(fields: int = 200, keys: int = 950) -> Workload:
    lists = [f % 3 == 2 for f in range(fields)]
    mean = (keys - fields + sum(lists)) / sum(lists)
    sizes = np.random.default_rng(1).permutation(np.geomspace(30_000, 200_000, fields).astype(int))
    return Workload(
        "W",
        tuple(sizes.tolist()),
        dense=0,
        dim=8,
        hidden=(256, 128),
        exponent=(1.08, 1.17),
        lengths=tuple(mean if is_list else 1.0 for is_list in lists),
    )


P = Workload(
    "P", tuple(np.geomspace(10, 300_000, 26).astype(int).tolist()), dense=13, dim=16, hidden=(256, 128)
)
W = _wide()
