"""Near-cache: embedding rows of the served version in the server's memory.

Rows live in the trainer's hash table, with a layout of values without optimiser state. So a row that was
never published gets the initial value that the trainer would give it. It is cached too, as a negative entry,
and replaced when a version lists its key as changed.

Random eviction: when `max_rows` rows are held, a random half of every table is dropped. A row that is in use
comes back with the next request at the cost of an MGET. A hit records nothing.

Requests read the tables under a shared lock; a request that adds missing rows holds it exclusively.
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
    """Ragged keys of F fields, to be pooled.

    Args:
        fields: F pairs (field name, table name).
        offsets: i32[F·B+1], field-major as in `Features`.
        keys: i64[nnz].
        rows: B.
        sequences: indices of the fields of which the vector of each key is read as well.
    """

    fields: tuple[tuple[str, str], ...]
    offsets: I32
    keys: I64
    rows: int
    sequences: tuple[int, ...] = ()

    def field_tables(self, tables: dict[str, DynamicTable]) -> FieldTables:
        """Reader of batches with these fields: the fields, then each sequence as a field of one-key rows."""
        fields = (*self.fields, *(self.fields[i] for i in self.sequences))
        blocks = [0] * len(self.fields) + [1 + i for i in range(len(self.sequences))]
        return FieldTables(tables, fields, blocks)

    def infer(self, field_tables: FieldTables) -> Vectors:
        """Read the vectors of this batch."""
        lists = [self.offsets[i * self.rows : (i + 1) * self.rows + 1] for i in self.sequences]
        keys = np.concatenate([self.keys, *(self.keys[at[0] : at[-1]] for at in lists)])
        more = np.arange(len(self.keys) + 1, len(keys) + 1, dtype=np.int32)
        lengths = [int(at[-1] - at[0]) for at in lists]
        offsets = np.concatenate([self.offsets, more])
        pooled, *sequences = field_tables.infer(offsets, keys, self.rows, *lengths)
        parts = zip(lists, sequences, strict=True)
        return Vectors(
            pooled, tuple(RaggedVectors(v[:, 0], (at - at[0]).astype(np.int64)) for at, v in parts)
        )


@dataclass(frozen=True)
class RaggedVectors:
    """Vectors of a field's keys; row b has values[offsets[b] : offsets[b + 1]].

    Args:
        values: f32[nnz, D].
        offsets: i64[rows + 1].
        shared_by: number of rows that share the only list; 0: each row has its own list.
    """

    values: F32
    offsets: I64
    shared_by: int = 0

    def broadcast(self, rows: int) -> RaggedVectors:
        """Share the list of a single row among `rows` rows, without a copy."""
        return replace(self, shared_by=rows)

    def slice(self, first: int, last: int) -> RaggedVectors:
        """Lists of the rows from `first` to before `last`; a shared list is copied for each row."""
        if self.shared_by:
            rows, size = last - first, len(self.values)
            return RaggedVectors(np.tile(self.values, (rows, 1)), np.arange(rows + 1) * size, rows)
        start, end = self.offsets[first], self.offsets[last]
        return RaggedVectors(self.values[start:end], self.offsets[first : last + 1] - start)

    def padded(self, more: int) -> RaggedVectors:
        """With `more` rows at the end: empty lists, or the list that all rows share."""
        if self.shared_by:
            return replace(self, values=self.values[: self.offsets[1]]).slice(0, self.shared_by + more)
        return replace(self, offsets=np.pad(self.offsets, (0, more), mode="edge"))


@dataclass(frozen=True)
class Vectors:
    """Vectors of a batch.

    Args:
        pooled: f32[B, F, D], sums over the keys of a field.
        lists: vectors of each key, for each field of `Batch.sequences`.
    """

    pooled: F32
    lists: tuple[RaggedVectors, ...]


class NearCache:
    """Embedding rows of several tables at a single version.

    Args:
        tables: names.
        layout: values of a row, without optimiser state.
        seed: the trainer's; it gives new rows their initial values.
        max_rows: bound over all tables.

    Raises:
        ValueError: the layout has optimiser state.
    """

    def __init__(self, tables: Sequence[str], layout: RowLayout, *, seed: int, max_rows: int) -> None:
        if any(segment.optimiser.state_floats(segment.dim) for segment in layout.segments):
            raise ValueError("the near-cache holds values only: its layout must have no optimiser state")
        self.tables = {name: DynamicTable(layout, name=name, seed=seed) for name in tables}
        self._max_rows = max_rows
        self._lock = SwapLock()
        self._field_tables: dict[tuple[tuple[tuple[str, str], ...], tuple[int, ...]], FieldTables] = {}
        self._random = np.random.default_rng(0)

    def __len__(self) -> int:
        return sum(len(table) for table in self.tables.values())

    def infer(
        self, batch: Batch, read: Mapping[str, tuple[I64, F32]]
    ) -> tuple[Vectors | None, dict[str, I64]]:
        """Read the vectors of a batch.

        Args:
            read: rows to add first, by table: keys i64[m] and rows f32[m, D]. They are not evicted before
                the vectors are read.

        Returns:
            The vectors and {}; or None and the unique missing keys of each table.
        """
        with self._lock.write() if read else self._lock.read():
            if read:
                self._make_room(sum(len(keys) for keys, _ in read.values()))
                for table, (keys, rows) in read.items():
                    self._assign(table, keys, rows)
                metrics.NEAR_CACHE_ROWS.set(len(self))
            field_tables = self._tables_of(batch)
            missing = self._missing(batch, field_tables)
            if missing:
                return None, missing
            return batch.infer(field_tables), {}

    def infer_cold(self, batch: Batch) -> Vectors:
        """Read the vectors of a batch, with initial values for missing rows; nothing is cached."""
        with self._lock.read():
            return batch.infer(self._tables_of(batch))

    def initial(self, table: str, keys: I64) -> F32:
        """Initial values f32[n, D] of keys i64[n], which must not be cached."""
        with self._lock.read():
            return self.tables[table].lookup(keys)

    def cached(self, table: str, keys: I64) -> I64:
        """Cached keys among keys i64[n]."""
        with self._lock.read():
            cached: I64 = keys[self.tables[table].find(keys) != MISSING_ROW]
            return cached

    def replace(self, table: str, stale: I64, keys: I64, rows: F32) -> None:
        """Drop keys stale i64[m], then add rows f32[n, D] of keys i64[n]."""
        with self._lock.write():
            self.tables[table].erase(stale)
            self._assign(table, keys, rows)

    def _assign(self, table: str, keys: I64, rows: F32) -> None:
        layout = self.tables[table].layout
        if layout.stride > layout.dim:  # rows of 16-bit values end with a count of updates; it stays 0
            rows = np.pad(rows, ((0, 0), (0, layout.stride - layout.dim)))
        self.tables[table].assign(keys, rows)

    def _tables_of(self, batch: Batch) -> FieldTables:
        shape = batch.fields, batch.sequences
        tables = self._field_tables.get(shape)
        if tables is None:
            tables = self._field_tables[shape] = batch.field_tables(self.tables)
        return tables

    def _missing(self, batch: Batch, field_tables: FieldTables) -> dict[str, I64]:
        """Unique keys of each table that are not cached; counts hits and misses."""
        ends = batch.offsets[:: batch.rows].tolist()
        absent = field_tables.find(ends, batch.keys) == MISSING_ROW
        missing: dict[str, list[I64]] = {}
        if absent.any():
            for (_, table), (start, end) in zip(batch.fields, itertools.pairwise(ends), strict=True):
                if absent[start:end].any():
                    missing.setdefault(table, []).append(batch.keys[start:end][absent[start:end]])
        unique = {table: np.unique(np.concatenate(parts)) for table, parts in missing.items()}
        misses = sum(len(keys) for keys in unique.values())
        metrics.NEAR_CACHE_HITS.inc(len(batch.keys) - misses)
        metrics.NEAR_CACHE_MISSES.inc(misses)
        return unique

    def _make_room(self, coming: int) -> None:
        if len(self) + coming <= self._max_rows:
            return
        for table in self.tables.values():
            keys, _ = table.export()
            table.erase(keys[self._random.random(len(keys)) < 0.5])
