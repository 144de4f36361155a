"""Cost model of the field exchange: bytes and seconds of a step, and the fastest exchange of every field.

Bytes that all N ranks send in a step of B examples:

    partial   2 w (N − 1) B S  once, for all partial fields together,  and  k_f (N − 1)/N  for each
    vectors   2 w (N − 1)/N B K + k_f (N − 1)/N + 2 w (N − 1) P_f;  of a split table 2 w (N − 1) B K + …
    rows      (2 w K + 8) U_f (N − 1)/N + 2 w (N − 1) P_f

Seconds of a rank, beside what every exchange costs alike:

    partial   partial_s B S  once
    vectors   value_s B/N K;  of a split table 2 value_s B K
    rows      value_s B/N K + key_s n_f/N
    each      (byte_s bytes of w = 4 + link bytes)/N

    w     bytes of a number on the wire
    S     numbers of an example's partial results
    K     values of a row, all roles together
    k_f   bytes of the encoded keys of field f
    n_f   keys of field f
    U_f   unique keys of field f, summed over the ranks' own examples
    P_f   parameters of field f that are on every rank if the field is sample-parallel
    link  seconds of a byte between machines; 0 where all ranks are on one

Numbers that travel as bf16 cost a rank as much as fp32: to round and widen them takes what their bytes save.

The work's seconds are a table (`WORK`), the same on every machine: a clock would choose otherwise from run to
run, and an exchange adds floats in an order of its own. The link is measured (`trainer.comm.link`).

Partial results are fastest where fields, or keys of an example, are many: N S < F K. Rows are fastest where
keys repeat and the link is slow; vectors where fields are few and it is not.

The vector of a field whose table is split by key comes as N partial sums, one from each rank. Each is a value
twice: where it is pooled, of all B examples, and where it is added up. They do not grow with the keys of an
example, so they are fastest where lists are long beside N K.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from livectr.trainer.step_settings import FieldExchange

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """Seconds of a rank's work, by one thread.

    Attributes:
        partial_s: of a number of partial results, which the owner adds up for all examples
        value_s: of a value of a row, put beside those of other fields for an own example
        key_s: of a key that is made unique, requested and read from the rows received
        byte_s: of a byte that is packed, sent over loopback and unpacked
    """

    partial_s: float
    value_s: float
    key_s: float
    byte_s: float


WORK = Work(partial_s=1.76e-8, value_s=3.3e-9, key_s=1.53e-7, byte_s=3.07e-9)
"""Fit of `bench.plan.exchange_fit` to the steps of `livectr bench scaling`."""


@dataclass(frozen=True)
class Measured:
    """Sizes of a batch over all ranks.

    Attributes:
        samples: B
        keys: f64[F], bytes of each field's encoded keys
        unique: f64[F], unique keys of each field, summed over the ranks' own examples
        read: f64[F], keys of each field
    """

    samples: int
    keys: F64
    unique: F64
    read: F64


@dataclass(frozen=True)
class Costs:
    """Bytes or seconds of every exchange.

    Attributes:
        fixed: of the partial results, which do not depend on the number of partial fields
        fields: exchange → f64[F] of each field
    """

    fixed: float
    fields: dict[FieldExchange, F64]

    def total(self, field_exchange: Sequence[FieldExchange]) -> float:
        """Cost of this exchange of every field."""
        fixed = self.fixed if "partial" in field_exchange else 0.0
        return fixed + sum(float(self.fields[exchange][f]) for f, exchange in enumerate(field_exchange))

    def least(self, never_partial: Collection[int] = ()) -> list[FieldExchange]:
        """Exchange of each field that costs least; `never_partial`: fields that cannot be partial."""
        vectors, rows = self.fields["vectors"], self.fields["rows"]
        best: list[FieldExchange] = [
            "vectors" if v < r else "rows" for v, r in zip(vectors, rows, strict=True)
        ]
        saved = np.minimum(vectors, rows) - self.fields["partial"]
        partial = [f for f in np.flatnonzero(saved > 0).tolist() if f not in never_partial]
        if saved[partial].sum() > self.fixed:
            for f in partial:
                best[f] = "partial"
        return best


@dataclass(frozen=True)
class CostModel:
    """Bytes and seconds of a step; see the module's docstring for the letters.

    Not counted are sizes, scores and the rest of the networks, which every exchange sends.

    Attributes:
        world: N
        partial: S of all roles
        dim: K
        parameters: P_f of each field
        width: w, 4 or 2
        gbit: Gbit/s of a rank between machines; None: all ranks are on one
        split: fields whose table is split by key
    """

    world: int
    partial: int
    dim: int
    parameters: Sequence[int]
    width: int = 4
    gbit: float | None = None
    split: Collection[int] = ()

    def bytes(self, measured: Measured, field_exchange: Sequence[FieldExchange]) -> float:
        """Bytes that all ranks send with this exchange of every field."""
        return self._bytes(measured).total(field_exchange)

    def seconds(self, measured: Measured, field_exchange: Sequence[FieldExchange]) -> float:
        """Seconds of a rank with this exchange of every field."""
        return self._seconds(measured).total(field_exchange)

    def fastest(self, measured: Measured, never_partial: Collection[int] = ()) -> list[FieldExchange]:
        """Exchange of each field that takes least time; `never_partial`: fields that cannot be partial."""
        return self._seconds(measured).least(never_partial)

    def _bytes(self, measured: Measured) -> Costs:
        n, w = self.world, self.width
        share = (n - 1) / n
        keys = share * measured.keys
        vectors = 2 * w * share * measured.samples * self.dim * self._if_split(measured, n)
        blocks = 2 * w * (n - 1) * np.asarray(self.parameters, np.float64)
        return Costs(
            2.0 * w * (n - 1) * measured.samples * self.partial,
            {
                "partial": keys,
                "vectors": vectors + keys + blocks,
                "rows": (2 * w * self.dim + 8) * share * measured.unique + blocks,
            },
        )

    def _if_split(self, measured: Measured, factor: int) -> F64:
        """`factor` of fields whose table is split by key, 1 of others, f64[F]."""
        return np.where(np.isin(np.arange(len(measured.keys)), list(self.split)), float(factor), 1.0)

    def _seconds(self, measured: Measured) -> Costs:
        sent, wide = self._bytes(measured), replace(self, width=4)._bytes(measured)
        link_s = 0.0 if self.gbit is None else 8e-9 / self.gbit

        def moved(wide: F64 | float, sent: F64 | float) -> F64 | float:
            return (WORK.byte_s * wide + link_s * sent) / self.world

        values = WORK.value_s * measured.samples / self.world * self.dim
        work: dict[FieldExchange, F64 | float] = {
            "partial": 0.0,
            "vectors": values * self._if_split(measured, 2 * self.world),
            "rows": values + WORK.key_s * measured.read / self.world,
        }
        return Costs(
            float(WORK.partial_s * measured.samples * self.partial + moved(wide.fixed, sent.fixed)),
            {way: np.asarray(work[way] + moved(wide.fields[way], sent.fields[way])) for way in sent.fields},
        )
