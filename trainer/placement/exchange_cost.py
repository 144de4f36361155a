"""Cost model of the field exchange: bytes of a step for each exchange, and the cheapest for every field.

Bytes that all N ranks send in a step of B examples:

    partial   2 w (N − 1) B S  once, for all partial fields together,  and  k_f (N − 1)/N  for each
    vectors   2 w (N − 1)/N B K + k_f (N − 1)/N + 2 w (N − 1) P_f
    rows      (2 w K + 8) U_f (N − 1)/N + 2 w (N − 1) P_f

    w    bytes of a number on the wire
    S    numbers of an example's partial results
    K    values of a row, all roles together
    k_f  bytes of the encoded keys of field f
    U_f  unique keys of field f, summed over the ranks' own examples
    P_f  parameters of field f that are on every rank if the field is sample-parallel

Partial results are cheapest where fields, or keys of an example, are many: N S < F K. Rows are cheapest where
keys repeat.
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
    """Sizes of a batch over all ranks.

    Attributes:
        samples: B
        keys: f64[F], bytes of each field's encoded keys
        unique: f64[F], unique keys of each field, summed over the ranks' own examples
    """

    samples: int
    keys: NDArray[np.float64]
    unique: NDArray[np.float64]


@dataclass(frozen=True)
class CostModel:
    """Bytes of a step; see the module's docstring for the letters.

    Attributes:
        world: N
        partial: S of all roles
        dim: K
        parameters: P_f of each field
        width: w, 4 or 2
    """

    world: int
    partial: int
    dim: int
    parameters: Sequence[int]
    width: int = 4

    def sample_parallel(self, measured: Measured) -> dict[FieldExchange, NDArray[np.float64]]:
        """Bytes f64[F] of each field with `vectors`, and with `rows`."""
        n, w = self.world, self.width
        share = (n - 1) / n
        blocks = 2 * w * (n - 1) * np.asarray(self.parameters, np.float64)
        return {
            "vectors": 2 * w * share * measured.samples * self.dim + share * measured.keys + blocks,
            "rows": (2 * w * self.dim + 8) * share * measured.unique + blocks,
        }

    def fixed(self, measured: Measured) -> float:
        """Bytes of the partial results, which do not depend on the number of partial fields."""
        return 2.0 * self.width * (self.world - 1) * measured.samples * self.partial

    def cheapest(self, measured: Measured, never_partial: Collection[int] = ()) -> list[FieldExchange]:
        """Exchange of each field that sends fewest bytes; `never_partial`: fields that cannot be partial."""
        costs = self.sample_parallel(measured)
        best: list[FieldExchange] = [
            "vectors" if v < r else "rows" for v, r in zip(costs["vectors"], costs["rows"], strict=True)
        ]
        cost = np.minimum(costs["vectors"], costs["rows"])
        saved = cost - measured.keys * (self.world - 1) / self.world
        partial = [f for f in np.flatnonzero(saved > 0).tolist() if f not in never_partial]
        if saved[partial].sum() > self.fixed(measured):
            for f in partial:
                best[f] = "partial"
        return best

    def bytes(self, measured: Measured, field_exchange: Sequence[FieldExchange]) -> float:
        """Bytes of this exchange of every field; not counted are sizes, scores and the rest of the networks,
        which every exchange sends."""
        costs = self.sample_parallel(measured)
        total = self.fixed(measured) if "partial" in field_exchange else 0.0
        for f, exchange in enumerate(field_exchange):
            if exchange == "partial":
                total += measured.keys[f] * (self.world - 1) / self.world
            else:
                total += costs[exchange][f]
        return float(total)
