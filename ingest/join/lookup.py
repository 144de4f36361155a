"""Look-up table: the latest row of each key of a topic or files, and older rows that events may look up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.decode.arrow_size import row_bytes
from livectr.ingest.join.row_log import RowLog
from livectr.ingest.language import dtypes
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.tables import Table
from livectr.kernels.keys.keys import KeyNumbers
from livectr.kernels.stream.clock import FIRST, LAST
from livectr.kernels.stream.row_budget import KEY_BYTES, RowBudget, Rows
from livectr.kernels.stream.timed_rows import TimedRows
from livectr.kernels.stream.versions import Entries, RowVersions

I64 = npt.NDArray[np.int64]

NEVER = int(np.iinfo(np.int64).max)
FEW_KEYS = 4096
"""Keys without a row that are kept for their number alone."""
LISTED_KEYS = 1 << 20
"""Deleted keys that may always be kept for `changed`."""
DELETED_KEPT_MS = 24 * 3_600_000
"""Event time for which a delete is known, so that an older row of its key that comes late stays outdated."""

KEY, TIME, ROW = "#key", "#time", "#row"
"""Columns of saved rows besides their own: the key, the time from which a row is valid, and its number."""


class LookupTable:
    """Latest row of each key of a `Table`, with vectorized look-up.

    Rows are appended to a log, and an index maps each key to its latest row. When half of the rows are
    outdated, live rows are copied to a new log: memory stays below about twice the live rows. Keys without a
    row leave alike. A row leaves as if deleted `max_age` after its time; with `max_bytes`, the oldest do.

    Args:
        table: declaration of topic, key and columns.
        versioned: also keep older rows, for look-ups as of a time, until `forget` drops them. The table needs
            a time column. A row that deletes its key has the time of the delete, or null, which is that of
            the key's newest row.
    """

    def __init__(self, table: Table, *, versioned: bool = False) -> None:
        self.table = table
        self.schema = pa.schema([(name, dtypes.arrow_type(dtype)) for name, dtype in table.columns.items()])
        self._numbers = KeyNumbers()
        self._keys = np.zeros(1, np.int64)
        self._row = np.full(1, -1, np.int64)
        """Row number of each key number's latest row; -1: deleted. The last element stands for unknown
        keys."""
        self._generation = np.zeros(1, np.int64)
        self._current = 1
        self._live = 0
        self._looked_up = 0  # rows, since the table changed
        self.found, self.missing = 0, 0  # look-ups by `columns` so far
        self._log = RowLog(self.schema)
        self.versions = TimedRows(table.max_age_ms, table.max_bytes) if versioned else None
        self._told = NEVER  # generation up to which everybody knows which keys were deleted

    def __len__(self) -> int:
        """Keys that have a row."""
        return self._live

    def upsert(self, batch: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None) -> None:
        """Insert or replace rows in log order; the last row of a key wins.

        Args:
            batch: n rows with all columns of the table.
            deleted: bool[n], rows that delete their key (tombstones).
        """
        if not batch.num_rows:
            return
        batch = batch.select(self.schema.names).cast(self.schema)
        keys = key_of(batch.column(self.table.key))
        numbers, rows = self._append(keys, batch, deleted)
        latest = np.unique(numbers[::-1], return_index=True)[1]
        latest = len(numbers) - 1 - latest
        changed = numbers[latest]
        self._live -= int(np.count_nonzero(self._row[changed] >= 0))
        self._row[changed] = rows[latest]
        self._live += int(np.count_nonzero(self._row[changed] >= 0))
        self._generation[changed] = self._current
        self._compact()
        if self._told == NEVER:  # else when the deletes are told
            self._drop_keys()

    def _append(
        self, keys: I64, batch: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None
    ) -> tuple[I64, I64]:
        """Add rows and their versions; returns the numbers of their keys and of the rows, -1: deleted."""
        numbers = self._numbers.assign(keys).astype(np.int64)
        self._grow(len(self._numbers))
        self._keys[numbers] = keys
        rows = self._log.next + np.arange(len(keys))
        if deleted is not None:
            rows[deleted] = -1
        if self.versions is not None:
            times = batch.column(self.table.time)
            known = times.fill_null(-1).to_numpy()
            if deleted is not None:  # Kafka has -1 for a record without time
                known = np.where(deleted & (known < 0), self.versions.newest(numbers), known)
            self.versions.put(numbers, known, rows)
            if self.versions.budget is not None:
                self.versions.budget.put(
                    Rows(numbers, known, np.where(rows < 0, 0, KEY_BYTES + row_bytes(batch)))
                )
        self._log.append(batch)
        self._looked_up = 0
        return numbers, rows

    def take(self, keys: I64) -> pa.RecordBatch:
        """Rows of keys int64[n], in the order of the keys; an unknown key gives a row of nulls."""
        return self._log.take(self._rows(keys))

    def columns(self, keys: I64, names: Sequence[str], times: I64 | None = None) -> dict[str, pa.Array]:
        """Columns of the rows of keys int64[n]; null where a key is unknown.

        With times int64[n] of a versioned table: of the rows that were valid then.

        Columns are dictionary-encoded with the table as dictionary, not copied, once its rows lie in one
        batch: batches are joined when as many rows were looked up since the last change as the table has.
        """
        self._looked_up += len(keys)
        if self._log.single_batch is None and self._looked_up >= self._live:
            self._log.join()
        joined = self._log.single_batch if len(keys) else None
        if joined is None:
            rows = self._rows(keys) if self.versions is None or times is None else self._rows_at(keys, times)
            absent, taken = int(np.count_nonzero(rows < 0)), self._log.take(rows)
            found = {name: taken.column(name) for name in names}
        else:
            index = self._index(keys, times, joined[0])
            absent, encoded = index.null_count, pa.DictionaryArray.from_arrays
            found = {name: encoded(index, joined[1].column(name), safe=False) for name in names}
        self.found, self.missing = self.found + len(keys) - absent, self.missing + absent
        return found

    def _index(self, keys: I64, times: I64 | None, first: int) -> pa.Array:
        """Rows of keys, counted from `first`: int32[n], null where a key has none."""
        if self.versions is not None and times is not None:
            rows = self._rows_at(keys, times)
            return pa.array((rows - first).astype(np.int32), mask=rows < 0)
        *arrays, absent = self._numbers.rows(keys, self._row, first)
        return pa.Array.from_buffers(pa.int32(), len(keys), [*map(pa.py_buffer, arrays)], absent)

    def join(self) -> None:
        """Join the rows into one batch, so that look-ups copy nothing until the table changes."""
        self._log.join()

    def contains(self, keys: I64) -> npt.NDArray[np.bool_]:
        """Mask of the keys that have a row: bool[n]."""
        return self._rows(keys) >= 0

    def rows(self) -> tuple[I64, pa.RecordBatch]:
        """All live rows: (keys int64[m], batch of m rows), in the order in which keys first appeared."""
        live = np.flatnonzero(self._row >= 0)
        return self._keys[live], self._log.take(self._row[live])

    def mark(self) -> int:
        """Close the current generation and return its number."""
        self._current += 1
        return self._current - 1

    def touched(self, since: int) -> tuple[I64, npt.NDArray[np.bool_]]:
        """Keys int64[m] of `changed`, and bool[m]: they have a row."""
        changed = np.flatnonzero(self._generation > since)
        return self._keys[changed], self._row[changed] >= 0

    def changed(self, since: int = 0) -> tuple[I64, list[list[Any] | None]]:
        """Rows that changed after a generation of `mark` (0: all), in the order in which keys first appeared.

        Returns:
            Keys int64[m] and m rows. A row lists the columns in declared order as JSON types: binary as
                base64 text, an image as null because nothing reads it. A deleted key has None.
        """
        changed = np.flatnonzero(self._generation > since)
        rows: list[list[Any] | None] = [None] * len(changed)
        alive = np.flatnonzero(self._row[changed] >= 0)
        for part, latest in self._log.pieces(self._row[changed[alive]]):
            columns = [
                dtypes.json_values(latest.column(name), dtype) for name, dtype in self.table.columns.items()
            ]
            for place, values in zip(alive[part].tolist(), zip(*columns, strict=True), strict=True):
                rows[place] = list(values)
        return self._keys[changed], rows

    def forget(self, time_ms: int, reached_ms: int = FIRST) -> bool:
        """Drop rows that no look-up as of a time (ms) or later needs, once they are many; true: some were.

        Args:
            reached_ms: time up to which all rows are there.
        """
        if self.versions is None:
            return False
        self.versions.horizon = max(self.versions.horizon, time_ms)
        ended = self.versions.end(reached_ms, self._keys)
        old = ended[self._row[ended] >= 0]
        self._row[old], self._generation[old] = -1, self._current
        self._live -= len(old)
        if not self.versions.forget(time_ms, at_once=len(ended) > 0) and not len(ended):
            return False
        self._compact()
        return True

    def track_left(self) -> None:
        """Keep deleted keys for `changed` until `forget_left`."""
        self._told = 0

    def forget_left(self, until: int) -> None:
        """Forget the keys that were deleted up to a generation: no version asks for them any more."""
        self._told = max(self._told, until)
        self._drop_keys()

    def _drop_keys(self) -> None:
        """Renumber the keys, without those that were deleted, if these are more than half."""
        count = len(self._numbers)
        if count <= 2 * self._live + FEW_KEYS:
            return
        kept = (self._row[:count] >= 0) | (self._generation[:count] > self._told)
        if self.versions is not None:
            kept_ms = self.table.max_age_ms or DELETED_KEPT_MS  # older rows are expired
            kept |= self.versions.known_after(self.versions.horizon - kept_ms, count)
        if 2 * np.count_nonzero(kept) + FEW_KEYS >= count:
            return
        if self.versions is not None:
            gone = self._keys[:count][~kept]
            self.versions.dropped.add(self.versions.next, gone, most=max(FEW_KEYS, self._live))
        old = np.flatnonzero(kept)
        keys, row, generation = self._keys[old], self._row[old], self._generation[old]
        self._numbers = KeyNumbers()
        self._numbers.assign(keys)
        self._keys, self._row, self._generation = (np.empty(0, np.int64) for _ in range(3))
        self._grow(len(old))
        self._keys[: len(old)], self._row[: len(old)], self._generation[: len(old)] = keys, row, generation
        if self.versions is not None:
            self.versions.keep(old)

    @property
    def listed(self) -> int:
        """Deleted keys that are kept for `changed`."""
        count = len(self._numbers)
        return int(np.count_nonzero((self._row[:count] < 0) & (self._generation[:count] > self._told)))

    @property
    def overgrown(self) -> bool:
        """True when more deleted keys are kept for `changed` than keys have a row."""
        return self.listed > max(LISTED_KEYS, self._live)

    @property
    def keys(self) -> I64:
        """Keys that have a row: int64[m]."""
        return self._keys[np.flatnonzero(self._row >= 0)]

    @property
    def known(self) -> int:
        """Keys in memory, also those that were deleted of late."""
        return len(self._numbers)

    @property
    def bytes(self) -> int:
        """Bytes of the rows and their index."""
        index = self._row.nbytes + self._keys.nbytes + self._generation.nbytes
        return self._log.bytes + index + (0 if self.versions is None else self.versions.bytes)

    def export(self, time_ms: int, share: tuple[int, int] = (0, 1)) -> pa.Table:
        """Rows of a versioned table for look-ups as of a time (ms) or later; deleted keys have nulls.

        Args:
            share: (rank, ranks): the keys that the rank saves.
        """
        self._timed.horizon = max(self._timed.horizon, time_ms)
        self._timed.forget(self._timed.horizon, at_once=True)
        return self._saved(self._timed.changed(0, self._keys, share))

    @property
    def places(self) -> tuple[int, int]:
        """Places in the sequence of rows: the first since which `changes` are known, and the next."""
        return self._timed.dropped.first, self._timed.next

    def count(self, since: int, share: tuple[int, int]) -> int:
        """Number of rows and keys of `changes`."""
        entries = self._timed.changed(since, self._keys, share)
        return len(entries.number) + len(self._timed.dropped.since(since, share))

    def changes(self, since: int, share: tuple[int, int]) -> tuple[pa.Table, I64]:
        """Rows that came at a place or later, as `export`, and keys int64[m] that left memory before them.

        Args:
            since: a place from `places`; 0: all rows.
            share: see `export`.
        """
        if not since:
            return self.export(self._timed.horizon, share), np.empty(0, np.int64)
        entries = self._timed.changed(since, self._keys, share)
        return self._saved(entries), self._timed.dropped.since(since, share)

    @property
    def _timed(self) -> TimedRows:
        if self.versions is None:
            raise ValueError(f"{self.table.topic} has no versions")
        return self.versions

    def _saved(self, entries: Entries) -> pa.Table:
        saved = pa.Table.from_batches([rows for _, rows in self._log.pieces(entries.row)], self.schema)
        for name, values in ((KEY, self._keys[entries.number]), (TIME, entries.time), (ROW, entries.row)):
            saved = saved.append_column(name, pa.array(values))
        return saved

    def restore(self, saved: pa.Table, bounds: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Load rows of `export` into a new table, for look-ups as of a time; latest rows come from the log.

        A column that was not saved is null.

        Args:
            bounds: of its versions then.
        """
        self._timed.restore(bounds)
        for batch in saved.to_batches():
            arrays = [
                batch.column(field.name).cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(len(batch), field.type)
                for field in self.schema
            ]
            time = self.schema.get_field_index(self.table.time)
            arrays[time] = batch.column(TIME)
            rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            self._append(batch.column(KEY).to_numpy(), rows, batch.column(ROW).to_numpy() < 0)

    def read(self) -> None:
        """Note that the log was read to its end: restored keys that it lacks were deleted meanwhile."""
        if self.versions is None:
            return
        number = np.arange(len(self._numbers))
        gone = number[
            (self._generation[number] == 0) & (self.versions.at(number, np.full_like(number, LAST))[0] >= 0)
        ]
        if len(gone):
            newest = int(self.versions.newest(number).max())
            self.versions.put(gone, np.full_like(gone, newest), np.full_like(gone, -1))
        if self.versions.budget is not None and self.versions.budget.clock > FIRST:
            self._fill(self.versions.budget, self.versions)
        self.forget(self.versions.horizon)

    def _fill(self, budget: RowBudget, versions: RowVersions) -> None:
        """Put the rows of a restored table into its budget."""

        def sized(number: I64, time: I64, row: I64) -> Rows:
            sizes = np.zeros(len(row), np.int64)
            held = np.flatnonzero(row >= 0)
            for part, rows in self._log.pieces(row[held]):
                sizes[held[part]] = KEY_BYTES + row_bytes(rows)
            return Rows(number, time, sizes)

        number = np.arange(len(self._numbers))
        row, since = versions.at(number, np.full_like(number, budget.clock))
        row[budget.gone(self._keys[number], since, budget.clock)] = -1
        entries = versions.entries()
        later = entries.take(entries.time > budget.clock)
        budget.fill(sized(number, since, row), sized(later.number, later.time, later.row))

    def _rows_at(self, keys: I64, times: I64) -> I64:
        assert self.versions is not None
        return self.versions.valid(self._numbers.find(keys).astype(np.int64), keys, times, self._keys)

    def _rows(self, keys: I64) -> I64:
        # MISSING is greater than all numbers and is clipped to the last element, -1.
        return self._row.take(self._numbers.find(keys), mode="clip")

    def _grow(self, count: int) -> None:
        if count >= len(self._row):
            more = max(count + 1, 2 * len(self._row), 1024) - len(self._row)
            self._row = np.concatenate([self._row, np.full(more, -1, np.int64)])
            self._keys = np.concatenate([self._keys, np.zeros(more, np.int64)])
            self._generation = np.concatenate([self._generation, np.zeros(more, np.int64)])

    def _compact(self) -> None:
        """Copy the rows in use to a new log if they are less than half of it."""
        older = 0 if self.versions is None else self.versions.older
        if self._log.next <= 2 * (self._live + older) + 4096:
            return
        live = np.flatnonzero(self._row >= 0)
        used = np.unique(self._row[live])
        if self.versions is not None:
            used = np.union1d(used, self.versions.rows())
            self.versions.renumber(used)
        log = RowLog(self.schema)
        for _, batch in self._log.pieces(used):
            log.append(batch)
        self._log = log
        self._row[live] = np.searchsorted(used, self._row[live])
