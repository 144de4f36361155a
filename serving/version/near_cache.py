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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from livectr.kernels.request.swap_lock import LateError, SwapLock
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.from_zero import FromZero, start_at_zero
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import MISSING_ROW, DynamicTable
from livectr.serving import metrics
from livectr.serving.deadlines import CALL, LONGEST_WAIT_S
from livectr.serving.errors import DeadlineError
from livectr.serving.version.batch import Batch, Vectors, field_tables
from livectr.store.layout import F32, I64

COUNTED_LOOKUPS = 61
"""One look-up of so many is counted in the metrics of keys. A prime: requests look up two or three times in
turn, and each must have its share."""
_EVICTED = 1 / 64
"""Part of `max_rows` that is dropped at a time, or more where a request needs more room."""
_MOST_FIELD_TABLES = 256
"""Orders of fields whose readers are remembered."""


class SupersededError(Exception):
    """A row is newer than the version of the request, or the near-cache has moved on to a newer one."""


def late() -> DeadlineError:
    """Error of a request whose deadline passed while it waited for a writer."""
    return DeadlineError("the deadline passed while a new version was being swapped in")


def _count(read: Mapping[str, tuple[I64, F32]], absent: Mapping[str, I64]) -> int:
    """Number of rows to add."""
    return sum(len(keys) for keys, _ in read.values()) + sum(len(keys) for keys in absent.values())


class NearCache:
    """Embedding rows of several tables at a single version.

    Args:
        tables: names.
        layout: values of a row, without optimiser state.
        seed: the trainer's; it gives new rows their initial values.
        max_rows: bound over all tables.
        version: number of the version of the rows.
        from_zero: (role, table) whose new rows are zero.

    Attributes:
        lock: over the rows; it knows their version.

    Raises:
        ValueError: the layout has optimiser state.
    """

    def __init__(
        self,
        tables: Sequence[str],
        layout: RowLayout,
        *,
        seed: int,
        max_rows: int,
        version: int = 0,
        from_zero: Iterable[FromZero] = (),
    ) -> None:
        if any(segment.optimiser.state_floats(segment.dim) for segment in layout.segments):
            raise ValueError("the near-cache holds values only: its layout must have no optimiser state")
        self.tables = {name: DynamicTable(layout, name=name, seed=seed) for name in tables}
        start_at_zero(self.tables, from_zero)
        self._max_rows = max_rows
        self._rows = 0  # of all tables: to count them takes a call for each
        self.lock = SwapLock(LONGEST_WAIT_S, version)
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
        added: int = 0,
    ) -> tuple[Vectors | None, dict[str, I64]]:
        """Read the vectors of a batch.

        Args:
            batch: ragged keys of F fields.
            read: rows to add first, by table: keys i64[m] and rows f32[m, D]. They are not evicted before
                the vectors are read.
            version: number of the version that the request began with; None: any.
            absent: keys i64[m] to add with their initial values, by table: they have no row at the version.
            added: rows that were read from Redis for the batch and added before; for the metrics.

        Returns:
            The vectors and {}; or None and the unique missing keys of each table.

        Raises:
            SupersededError: the rows are of another version.
            DeadlineError: the deadline of the thread's call passed first.
        """
        absent = absent or {}
        coming = _count(read, absent)
        with self.lock.write() if coming else self._reading():
            self._check(version)
            if coming:
                self._add(coming, read, absent)
            tables = self._tables_of(batch)
            vectors, missing = batch.infer(tables)
            if missing:
                return None, self._missing(batch, tables)
            if next(self._looks) % COUNTED_LOOKUPS == 0:
                self._count(batch, tables, added + coming)
            return vectors, {}

    def add(
        self, read: Mapping[str, tuple[I64, F32]], absent: Mapping[str, I64], version: int | None = None
    ) -> int:
        """Add rows, and return their number; arguments as those of `infer`. Raises SupersededError."""
        if coming := _count(read, absent):
            with self.lock.write():
                self._check(version)
                self._add(coming, read, absent)
        return coming

    def infer_cold(self, batch: Batch, version: int | None = None) -> Vectors:
        """Read the vectors of a batch, with initial values for missing rows; nothing is cached.

        Raises SupersededError and DeadlineError, as `infer`.
        """
        with self._reading():
            self._check(version)
            return batch.infer(self._tables_of(batch))[0]

    def field_tables(
        self, fields: tuple[tuple[str, str], ...], sequences: tuple[int, ...], once: int
    ) -> FieldTables:
        """Reader of batches with some fields; arguments as the attributes of `Batch`.

        Its calls need the lock.
        """
        shape = fields, sequences, once
        tables = self._field_tables.get(shape)
        if tables is None:
            if len(self._field_tables) >= _MOST_FIELD_TABLES:  # clients choose which fields are shared
                self._field_tables.clear()
            tables = self._field_tables[shape] = field_tables(self.tables, *shape)
        return tables

    def count_look(self, batch: Callable[[], Batch], read: int) -> None:
        """Count a look-up in the metrics, if it is one of those that are counted.

        Args:
            batch: that was looked up, without a missing row.
            read: its unique keys that were read from Redis.
        """
        if next(self._looks) % COUNTED_LOOKUPS == 0:
            with self._reading():
                looked_up = batch()
                self._count(looked_up, self._tables_of(looked_up), read)

    def cached(self, table: str, keys: I64) -> I64:
        """Cached keys among keys i64[n]. Raises DeadlineError, as `infer`."""
        with self._reading():
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
        with self.lock.write():
            for table, (keys, rows) in refreshed.items():
                with self._counted(table):
                    self.tables[table].erase(stale[table])
                self._assign(table, keys, rows)
            self.lock.version = version

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Hold the lock together with other readers, within the deadline of the thread's call."""
        try:
            with self.lock.read(CALL.get().deadline):
                yield
        except LateError:
            raise late() from None

    def _check(self, version: int | None) -> None:
        if version is not None and version != self.lock.version:
            raise SupersededError

    def _add(self, coming: int, read: Mapping[str, tuple[I64, F32]], absent: Mapping[str, I64]) -> None:
        """Add `coming` rows, and make room for them; the caller holds the lock of writers."""
        self._make_room(coming)
        for table, (keys, rows) in read.items():
            self._assign(table, keys, rows)
        for table, keys in absent.items():
            self._begin(table, keys)
        metrics.NEAR_CACHE_ROWS.labels().set(len(self))

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

    def _count(self, batch: Batch, tables: FieldTables, read: int) -> None:
        """Count a look-up in the metrics.

        Args:
            batch: that was looked up.
            tables: that have its rows.
            read: its unique keys that were read from Redis.
        """
        ends = batch.ends
        unique, initial = tables.census(ends, batch.keys)
        # Prefetched rows may be of a key that no field has.
        metrics.NEAR_CACHE_HITS.labels().inc(max(0, unique - read))
        metrics.NEAR_CACHE_MISSES.labels().inc(read)
        for (field, _), keys, fresh in zip(batch.fields, np.diff(ends), initial, strict=True):
            metrics.observe_keys(field, published=int(keys - fresh), initial=int(fresh))

    def _tables_of(self, batch: Batch) -> FieldTables:
        return self.field_tables(batch.fields, batch.sequences, batch.once)

    def _missing(self, batch: Batch, tables: FieldTables) -> dict[str, I64]:
        """Unique keys of each table that are not cached."""
        ends = batch.ends
        absent = tables.find(ends, batch.keys) == MISSING_ROW
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
