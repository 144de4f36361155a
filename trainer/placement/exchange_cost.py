"""What should travel: bytes that a step sends, by the way of every field, and the cheapest ways (DESIGN.md).

Bytes of all ranks together, of N ranks and B samples a step; w bytes a number on the wire, S numbers of
partial results, D values a row, k_f bytes of a field's encoded keys, U_f unique keys of it summed over the
ranks' own samples, P_f parameters that a near field brings to every rank:

    partial   2 w (N − 1) B S  once, for all partial fields together,  and  k_f (N − 1)/N  for each
    vectors   2 w (N − 1)/N B D + k_f (N − 1)/N + 2 w (N − 1) P_f
    rows      (2 w D + 8) U_f (N − 1)/N + 2 w (N − 1) P_f

Partial results win where fields, or keys a sample, are many: N S < F D; rows win where keys repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from livectr.trainer.step_settings import FieldExchange

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Measured:
    """A batch as it was found, over all ranks.

    samples: B. keys: f64[F], bytes of each field's encoded keys. unique: f64[F], unique keys of each field,
    summed over the ranks' own samples.
    """

    samples: int
    keys: NDArray[np.float64]
    unique: NDArray[np.float64]


@dataclass(frozen=True)
class CostModel:
    """Bytes of a step.

    world: N. partial: S of all roles. dim: D. parameters: P_f of each field. width: w, 4 or 2.
    """

    world: int
    partial: int
    dim: int
    parameters: Sequence[int]
    width: int = 4

    def sample_parallel(self, measured: Measured) -> dict[FieldExchange, NDArray[np.float64]]:
        """Bytes f64[F] of each field as vectors, and as rows."""
        n, w = self.world, self.width
        share = (n - 1) / n
        blocks = 2 * w * (n - 1) * np.asarray(self.parameters, np.float64)
        return {
            "vectors": 2 * w * share * measured.samples * self.dim + share * measured.keys + blocks,
            "rows": (2 * w * self.dim + 8) * share * measured.unique + blocks,
        }

    def fixed(self, measured: Measured) -> float:
        """Bytes of the partial results, whatever the number of partial fields."""
        return 2.0 * self.width * (self.world - 1) * measured.samples * self.partial

    def cheapest(self, measured: Measured, never_partial: Collection[int] = ()) -> list[FieldExchange]:
        """The way of each field that sends fewest bytes; fields of `near` cannot be partial."""
        found = self.sample_parallel(measured)
        best: list[FieldExchange] = [
            "vectors" if v < r else "rows" for v, r in zip(found["vectors"], found["rows"], strict=True)
        ]
        cost = np.minimum(found["vectors"], found["rows"])
        saved = cost - measured.keys * (self.world - 1) / self.world
        partial = [f for f in np.flatnonzero(saved > 0).tolist() if f not in never_partial]
        if saved[partial].sum() > self.fixed(measured):
            for f in partial:
                best[f] = "partial"
        return best

    def bytes(self, measured: Measured, field_exchange: Sequence[FieldExchange]) -> float:
        """Bytes that these ways send, without what any way sends: sizes, scores, the rest of the networks."""
        found = self.sample_parallel(measured)
        total = self.fixed(measured) if "partial" in field_exchange else 0.0
        for f, way in enumerate(field_exchange):
            if way == "partial":
                total += measured.keys[f] * (self.world - 1) / self.world
            else:
                total += found[way][f]
        return float(total)
