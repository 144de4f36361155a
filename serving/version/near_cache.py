"""Near-cache: embedding rows of the served version in the server's memory.

Rows live in the trainer's hash table, with a layout of values without optimiser state. So a row that was
never published gets the initial value that the trainer would give it. It is cached too, as a negative entry,
which is a row that was restored and never changed. It is replaced when a version lists its key as changed.

Random eviction: when `max_rows` rows are held, a random part of every table is dropped: few rows, for all
other requests wait meanwhile. A row that is in use comes back with the next request at the cost of an MGET. A
hit records nothing.

Requests read the tables under a shared lock; a request that adds missing rows holds it exclusively. Redis is
not read under it. The tables move from a version to the next in one step (`advance`); a request that began at
the version before is then told to start again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from livectr.serving import metrics
from livectr.serving.deadlines import current_call
from livectr.serving.version.swap_lock import SwapLock

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


COUNTED_LOOKUPS = 61
"""One look-up of so many is counted in the metrics of keys. A prime: requests look up two or three times in
turn, and each must have its share."""
_EVICTED = 1 / 64
"""Part of `max_rows` that is dropped at a time, or more where a request needs more room."""
_MOST_FIELD_TABLES = 256
"""Orders of fields whose readers are remembered."""


class RaggedKeys(Protocol):
    """Ragged keys of some rows, as `Features` has them."""

    @property
    def rows(self) -> int: ...
    @property
    def offsets(self) -> I32: ...
    @property
    def keys(self) -> I64: ...


@dataclass(frozen=True)
class Batch:
    """Ragged keys of F fields, to be pooled.

    Args:
        fields: F pairs (field name, table name).
        offsets: i32[cells + 1], field-major as in `Features`; a field has a cell for each row.
        keys: i64[nnz].
        rows: B.
        sequences: indices of the fields of which the vector of each key is read as well.
        once: number of fields, the first, that have a single row.
    """

    fields: tuple[tuple[str, str], ...]
    offsets: I32
    keys: I64
    rows: int
    sequences: tuple[int, ...] = ()
    once: int = 0

    @staticmethod
    def joined(
        fields: tuple[tuple[str, str], ...], sequences: tuple[int, ...], once: RaggedKeys, each: RaggedKeys
    ) -> Batch:
        """Batch of the keys of some fields of a single row, then those of fields of B rows.

        Args:
            fields, sequences: as the attributes.
            once, each: keys of the first fields, and of the others.
        """
        count = len(once.offsets) - 1
        if count == 0:
            return Batch(fields, each.offsets, each.keys, each.rows, sequences)
        if len(each.offsets) == 1:  # rows have no field of their own
            return Batch(fields, once.offsets, once.keys, each.rows, sequences, count)
        return Batch(
            fields,
            np.concatenate([once.offsets, each.offsets[1:] + once.offsets[-1]]),
            np.concatenate([once.keys, each.keys]),
            each.rows,
            sequences,
            count,
        )

    def field_tables(self, tables: dict[str, DynamicTable]) -> FieldTables:
        """Reader of batches with these fields: the fields, then each sequence as a field of one-key rows."""
        fields = (*self.fields, *(self.fields[i] for i in self.sequences))
        blocks = [1] * self.once + [0] * (len(self.fields) - self.once)
        return FieldTables(tables, fields, [*blocks, *range(2, 2 + len(self.sequences))])

    @property
    def ends(self) -> list[int]:
        """Field f has keys[ends[f] : ends[f + 1]]."""
        return [*self.offsets[: self.once].tolist(), *self.offsets[self.once :: self.rows].tolist()]

    def infer(self, field_tables: FieldTables) -> tuple[Vectors, int]:
        """Read the vectors of this batch; also the number of its keys that are missing."""
        offsets, keys, lists = self.offsets, self.keys, [self._cells(i) for i in self.sequences]
        if lists:
            keys = np.concatenate([keys, *(keys[at[0] : at[-1]] for at in lists)])
            more = np.arange(len(self.keys) + 1, len(keys) + 1, dtype=np.int32)
            offsets = np.concatenate([offsets, more])
        lengths = [int(at[-1] - at[0]) for at in lists]
        (pooled, once, *sequences), missing = field_tables.infer_counted(
            offsets, keys, self.rows, 1, *lengths
        )
        parts = zip(lists, sequences, strict=True)
        ragged = tuple(RaggedVectors(v[:, 0], (at - at[0]).astype(np.int64)) for at, v in parts)
        return Vectors(pooled, ragged, once), missing

    def _cells(self, field: int) -> I32:
        """Offsets of a field's cells, i32[rows + 1]."""
        if field < self.once:
            return self.offsets[field : field + 2]
        first = self.once + (field - self.once) * self.rows
        return self.offsets[first : first + self.rows + 1]


@dataclass(frozen=True)
class RaggedVectors:
    """Vectors of a field's keys; row b has values[offsets[b] : offsets[b + 1]], or all rows share a list.

    Args:
        values: f32[nnz, D].
        offsets: i64[rows + 1]; i64[2] of a shared list.
        shared_by: number of rows that share the only list; 0: each row has its own list.
    """

    values: F32
    offsets: I64
    shared_by: int = 0

    def broadcast(self, rows: int) -> RaggedVectors:
        """Share the list of a single row among `rows` rows, without a copy."""
        return replace(self, shared_by=rows)

    def slice(self, first: int, last: int) -> RaggedVectors:
        """Lists of the rows from `first` to before `last`."""
        if self.shared_by:
            return replace(self, shared_by=last - first)
        start, end = self.offsets[first], self.offsets[last]
        return RaggedVectors(self.values[start:end], self.offsets[first : last + 1] - start)

    def padded(self, more: int) -> RaggedVectors:
        """With `more` rows at the end: empty lists, or the list that all rows share."""
        if self.shared_by:
            return replace(self, shared_by=self.shared_by + more)
        return replace(self, offsets=np.pad(self.offsets, (0, more), mode="edge"))


@dataclass(frozen=True)
class Vectors:
    """Vectors of a batch.

    Args:
        pooled: f32[B, F, D], sums over the keys of a field.
        lists: vectors of each key, for each field of `Batch.sequences`.
        once: f32[1, `Batch.once`, D], the same sums of the fields that have a single row.
    """

    pooled: F32
    lists: tuple[RaggedVectors, ...]
    once: F32


class SupersededError(Exception):
    """A row is newer than the version of the request, or the near-cache has moved on to a newer one."""


class NearCache:
    """Embedding rows of several tables at a single version.

    Args:
        tables: names.
        layout: values of a row, without optimiser state.
        seed: the trainer's; it gives new rows their initial values.
        max_rows: bound over all tables.
        version: number of the version of the rows.

    Raises:
        ValueError: the layout has optimiser state.
    """

    def __init__(
        self, tables: Sequence[str], layout: RowLayout, *, seed: int, max_rows: int, version: int = 0
    ) -> None:
        if any(segment.optimiser.state_floats(segment.dim) for segment in layout.segments):
            raise ValueError("the near-cache holds values only: its layout must have no optimiser state")
        self.tables = {name: DynamicTable(layout, name=name, seed=seed) for name in tables}
        self._max_rows = max_rows
        self._rows = 0  # of all tables: to count them takes a call for each
        self._version = version
        self._lock = SwapLock()
        self._field_tables: dict[tuple[object, ...], FieldTables] = {}
        self._random = np.random.default_rng(0)
        self._looks = itertools.count()

    def __len__(self) -> int:
        return self._rows

    def infer(
        self,
        batch: Batch,
        read: Mapping[str, tuple[I64, F32]],
        version: int | None = None,
        absent: Mapping[str, I64] | None = None,
    ) -> tuple[Vectors | None, dict[str, I64]]:
        """Read the vectors of a batch.

        Args:
            read: rows to add first, by table: keys i64[m] and rows f32[m, D]. They are not evicted before
                the vectors are read.
            version: number of the version that the request began with; None: any.
            absent: keys i64[m] to add with their initial values, by table: they have no row at the version.

        Returns:
            The vectors and {}; or None and the unique missing keys of each table.

        Raises:
            SupersededError: the rows are of another version.
            DeadlineError: the deadline of the thread's call passed first.
        """
        absent = absent or {}
        coming = sum(len(keys) for keys in (*(k for k, _ in read.values()), *absent.values()))
        with self._lock.write() if coming else self._lock.read(current_call().deadline):
            self._check(version)
            if coming:
                self._make_room(coming)
                for table, (keys, rows) in read.items():
                    self._assign(table, keys, rows)
                for table, keys in absent.items():
                    self._begin(table, keys)
                metrics.NEAR_CACHE_ROWS.labels().set(len(self))
            field_tables = self._tables_of(batch)
            vectors, missing = batch.infer(field_tables)
            if missing:
                return None, self._missing(batch, field_tables)
            if next(self._looks) % COUNTED_LOOKUPS == 0:
                self._count(batch, field_tables, coming)
            return vectors, {}

    def infer_cold(self, batch: Batch, version: int | None = None) -> Vectors:
        """Read the vectors of a batch, with initial values for missing rows; nothing is cached.

        Raises SupersededError and DeadlineError, as `infer`.
        """
        with self._lock.read(current_call().deadline):
            self._check(version)
            return batch.infer(self._tables_of(batch))[0]

    def cached(self, table: str, keys: I64) -> I64:
        """Cached keys among keys i64[n]."""
        with self._lock.read():
            cached: I64 = keys[self.tables[table].find(keys) != MISSING_ROW]
            return cached

    def advance(
        self, version: int, stale: Mapping[str, I64], refreshed: Mapping[str, tuple[I64, F32]]
    ) -> None:
        """Move to a newer version.

        Args:
            version: its number.
            stale: keys i64[m] of each table to drop.
            refreshed: then keys i64[n] and rows f32[n, D] of each table to add.
        """
        with self._lock.write():
            for table, (keys, rows) in refreshed.items():
                with self._counted(table):
                    self.tables[table].erase(stale[table])
                self._assign(table, keys, rows)
            self._version = version

    def _check(self, version: int | None) -> None:
        if version is not None and version != self._version:
            raise SupersededError

    def _assign(self, table: str, keys: I64, rows: F32) -> None:
        """Add published rows."""
        with self._counted(table):
            self.tables[table].assign(keys, self._whole(table, rows))

    def _begin(self, table: str, keys: I64) -> None:
        """Add keys without a published row."""
        with self._counted(table):
            self.tables[table].restore(keys, self._whole(table, self.tables[table].lookup(keys)))

    @contextmanager
    def _counted(self, table: str) -> Iterator[None]:
        """Keep the number of rows while a table changes; the caller holds the lock of writers."""
        before = len(self.tables[table])
        try:
            yield
        finally:
            self._rows += len(self.tables[table]) - before

    def _whole(self, table: str, rows: F32) -> F32:
        """Whole rows of the layout: rows of 16-bit values end with a count of updates, which stays 0."""
        layout = self.tables[table].layout
        more = layout.stride - layout.dim
        return np.pad(rows, ((0, 0), (0, more))) if more else rows

    def _count(self, batch: Batch, field_tables: FieldTables, read: int) -> None:
        """Count a look-up in the metrics.

        Args:
            read: its unique keys that were read from Redis.
        """
        ends = batch.ends
        unique, initial = field_tables.census(ends, batch.keys)
        # Prefetched rows may be of a key that no field has.
        metrics.NEAR_CACHE_HITS.labels().inc(max(0, unique - read))
        metrics.NEAR_CACHE_MISSES.labels().inc(read)
        for (field, _), keys, fresh in zip(batch.fields, np.diff(ends), initial, strict=True):
            metrics.observe_keys(field, published=int(keys - fresh), initial=int(fresh))

    def _tables_of(self, batch: Batch) -> FieldTables:
        shape = batch.fields, batch.sequences, batch.once
        tables = self._field_tables.get(shape)
        if tables is None:
            if len(self._field_tables) >= _MOST_FIELD_TABLES:  # clients choose which fields are shared
                self._field_tables.clear()
            tables = self._field_tables[shape] = batch.field_tables(self.tables)
        return tables

    def _missing(self, batch: Batch, field_tables: FieldTables) -> dict[str, I64]:
        """Unique keys of each table that are not cached."""
        ends = batch.ends
        absent = field_tables.find(ends, batch.keys) == MISSING_ROW
        missing: dict[str, list[I64]] = {}
        if absent.any():
            for (_, table), (start, end) in zip(batch.fields, itertools.pairwise(ends), strict=True):
                if absent[start:end].any():
                    missing.setdefault(table, []).append(batch.keys[start:end][absent[start:end]])
        return {table: np.unique(np.concatenate(parts)) for table, parts in missing.items()}

    def _make_room(self, coming: int) -> None:
        held = len(self)
        surplus = held + coming - self._max_rows
        if surplus <= 0:
            return
        share = min(1.0, max(surplus, self._max_rows * _EVICTED) / held) if held else 0.0
        for name, table in self.tables.items():
            numbers = table.changed()
            chosen = numbers if share == 1.0 else numbers[self._random.random(len(numbers)) < share]
            with self._counted(name):
                table.erase(table.read(chosen, state=False)[0])
