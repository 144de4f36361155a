"""The near-cache: embedding rows of the served version, held in the server's memory.

Rows live in the same hash table that trains them, with a layout that keeps the values and no optimiser state;
so a row that nobody has stored yet gets the very initial value that the trainer would give it. Such a row is
cached too (a negative entry): it is a row like any other, and a version that lists its key as changed
replaces it.

Bound: when `max_rows` are held, a random half of every table goes. A row that is in use comes back with the
next request for the price of one MGET; nothing is recorded on the path of a hit.

Requests share the tables; only those that bring missing rows have them alone for a moment.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from livectr.serving import metrics
from livectr.serving.version.swap_lock import SwapLock

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """Ragged keys of some fields, to be pooled.

    fields: (field name, table name) in order, F of them. offsets i32[F·B+1], keys i64[nnz]: field-major as
    in `Features`. rows: B. sequences: numbers of the fields whose every key's vector is wanted besides.
    """

    fields: tuple[tuple[str, str], ...]
    offsets: I32
    keys: I64
    rows: int
    sequences: tuple[int, ...] = ()

    def front(self, tables: dict[str, DynamicTable]) -> FieldTables:
        """What reads such batches: the fields, then each sequence as a field of one-key rows."""
        fields = (*self.fields, *(self.fields[i] for i in self.sequences))
        blocks = [0] * len(self.fields) + [1 + i for i in range(len(self.sequences))]
        return FieldTables(tables, fields, blocks)

    def infer(self, front: FieldTables) -> Vectors:
        """The vectors of this batch, read by `front`."""
        lists = [self.offsets[i * self.rows : (i + 1) * self.rows + 1] for i in self.sequences]
        keys = np.concatenate([self.keys, *(self.keys[at[0] : at[-1]] for at in lists)])
        more = np.arange(len(self.keys) + 1, len(keys) + 1, dtype=np.int32)
        lengths = [int(at[-1] - at[0]) for at in lists]
        pooled, *apart = front.infer(np.concatenate([self.offsets, more]), keys, self.rows, *lengths)
        parts = zip(lists, apart, strict=True)
        return Vectors(pooled, tuple(List(v[:, 0], (at - at[0]).astype(np.int64)) for at, v in parts))


@dataclass(frozen=True)
class List:
    """Vectors f32[nnz, D] of a field's keys; those of row b are values[offsets[b] : offsets[b + 1]].

    same: rows that all have the one list that is there; 0: each row has its own."""

    values: F32
    offsets: I64
    same: int = 0

    def repeated(self, rows: int) -> List:
        """The list of one row, for each of `rows`; it is there once."""
        return replace(self, same=rows)

    def part(self, first: int, last: int) -> List:
        """The lists of some rows, each written out."""
        if self.same:
            rows, size = last - first, len(self.values)
            return List(np.tile(self.values, (rows, 1)), np.arange(rows + 1) * size, rows)
        start, end = self.offsets[first], self.offsets[last]
        return List(self.values[start:end], self.offsets[first : last + 1] - start)


@dataclass(frozen=True)
class Vectors:
    """Of a batch: pooled f32[B, F, D], and a `List` of each of its sequences."""

    pooled: F32
    lists: tuple[List, ...]


class NearCache:
    """Rows of several tables, at one version.

    layout: the row's values, stateless (its stride is D). seed: the trainer's. max_rows: over all tables.
    """

    def __init__(self, tables: Sequence[str], layout: RowLayout, *, seed: int, max_rows: int) -> None:
        if any(segment.optimiser.state_floats(segment.dim) for segment in layout.segments):
            raise ValueError("the near-cache holds values only: its layout must have no optimiser state")
        self.tables = {name: DynamicTable(layout, name=name, seed=seed) for name in tables}
        self._max_rows = max_rows
        self._lock = SwapLock()
        self._fronts: dict[tuple[tuple[tuple[str, str], ...], tuple[int, ...]], FieldTables] = {}
        self._random = np.random.default_rng(0)

    def __len__(self) -> int:
        return sum(len(table) for table in self.tables.values())

    def infer(
        self, batch: Batch, found: Mapping[str, tuple[I64, F32]]
    ) -> tuple[Vectors | None, dict[str, I64]]:
        """The vectors, or None and the unique keys of each table that are not held.

        found: rows to add first, per table (keys i64[m], rows f32[m, D]); they take part in this very call,
        whatever else is evicted.
        """
        with self._lock.write() if found else self._lock.read():
            if found:
                self._make_room(sum(len(keys) for keys, _ in found.values()))
                for table, (keys, rows) in found.items():
                    self._assign(table, keys, rows)
                metrics.NEARCACHE_ROWS.set(len(self))
            front = self._front(batch)
            missing = self._missing(batch, front)
            if missing:
                return None, missing
            return batch.infer(front), {}

    def infer_cold(self, batch: Batch) -> Vectors:
        """As `infer`, with initial values for rows that are not held; nothing is remembered."""
        with self._lock.read():
            return batch.infer(self._front(batch))

    def initial(self, table: str, keys: I64) -> F32:
        """The values f32[n, D] of rows that are not stored anywhere. The keys must not be held."""
        with self._lock.read():
            return self.tables[table].lookup(keys)

    def held(self, table: str, keys: I64) -> I64:
        """Those of keys i64[n] that are held."""
        with self._lock.read():
            kept: I64 = keys[self.tables[table].find(keys) != MISSING_ROW]
            return kept

    def replace(self, table: str, stale: I64, keys: I64, rows: F32) -> None:
        """Drops stale i64[m], then adds rows f32[n, D] of keys i64[n]."""
        with self._lock.write():
            self.tables[table].erase(stale)
            self._assign(table, keys, rows)

    def _assign(self, table: str, keys: I64, rows: F32) -> None:
        layout = self.tables[table].layout
        if layout.stride > layout.dim:  # rows of 16-bit values count their updates; here there are none
            rows = np.pad(rows, ((0, 0), (0, layout.stride - layout.dim)))
        self.tables[table].assign(keys, rows)

    def _front(self, batch: Batch) -> FieldTables:
        front = self._fronts.get((batch.fields, batch.sequences))
        if front is None:
            front = self._fronts[batch.fields, batch.sequences] = batch.front(self.tables)
        return front

    def _missing(self, batch: Batch, front: FieldTables) -> dict[str, I64]:
        ends = batch.offsets[:: batch.rows].tolist()
        absent = front.find(ends, batch.keys) == MISSING_ROW
        missing: dict[str, list[I64]] = {}
        if absent.any():
            for (_, table), (start, end) in zip(batch.fields, itertools.pairwise(ends), strict=True):
                if absent[start:end].any():
                    missing.setdefault(table, []).append(batch.keys[start:end][absent[start:end]])
        unique = {table: np.unique(np.concatenate(parts)) for table, parts in missing.items()}
        misses = sum(len(keys) for keys in unique.values())
        metrics.NEARCACHE_HITS.inc(len(batch.keys) - misses)
        metrics.NEARCACHE_MISSES.inc(misses)
        return unique

    def _make_room(self, coming: int) -> None:
        if len(self) + coming <= self._max_rows:
            return
        for table in self.tables.values():
            held, _ = table.export()
            table.erase(held[self._random.random(len(held)) < 0.5])
