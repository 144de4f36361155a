"""Look-up table: the latest row of each key of a topic or files, and older rows that events may look up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.decode.arrow_size import row_bytes
from livectr.ingest.join.latest_rows import DELETED, LatestRows
from livectr.ingest.join.row_log import RowLog
from livectr.ingest.language import dtypes
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.tables import Table
from livectr.kernels.stream.clock import FIRST
from livectr.kernels.stream.row_budget import KEY_BYTES, Rows
from livectr.kernels.stream.timed_rows import TimedRows

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NEVER = int(np.iinfo(np.int64).max)
FEW_KEYS = 4096
"""Keys without a row that are kept for their number alone."""
LISTED_KEYS = 1 << 20
"""Deleted keys that may always be kept for `changed`."""
DELETED_KEPT_MS = 24 * 3_600_000
"""Event time for which a delete is known, so that an older row of its key that comes late stays outdated."""


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

    Attributes:
        schema: of the rows.
        log: rows by number.
        latest: latest row of each key.
        versions: older rows, too; None unless `versioned`.
        found, missing: look-ups by `columns` so far, with and without a row.
    """

    def __init__(self, table: Table, *, versioned: bool = False) -> None:
        self.table = table
        self.schema = pa.schema([(name, dtypes.arrow_type(dtype)) for name, dtype in table.columns.items()])
        self.log = RowLog(self.schema)
        self.latest = LatestRows()
        self.versions = TimedRows(table.max_age_ms, table.max_bytes) if versioned else None
        self._looked_up = 0  # rows, since the table changed
        self.found = self.missing = 0
        self._told = NEVER  # generation up to which everybody knows which keys were deleted

    def __len__(self) -> int:
        """Keys that have a row."""
        return self.latest.live

    def upsert(self, batch: pa.RecordBatch, deleted: Mask | None = None) -> None:
        """Insert or replace rows in log order; the last row of a key wins.

        Args:
            batch: n rows with all columns of the table.
            deleted: bool[n], rows that delete their key (tombstones).
        """
        if not batch.num_rows:
            return
        batch = batch.select(self.schema.names).cast(self.schema)
        keys = key_of(batch.column(self.table.key))
        self.latest.put(*self.append(keys, batch, deleted))
        self._compact()
        if self._told == NEVER:  # else when the deletes are told
            self._drop_keys()

    def append(self, keys: I64, batch: pa.RecordBatch, deleted: Mask | None) -> tuple[I64, I64]:
        """Add n rows and their versions; the latest row of each key stays.

        Args:
            keys: int64[n], keys of the rows.
            batch: rows of the schema.
            deleted: as in `upsert`.

        Returns:
            Numbers int64[n] of the keys, and of the rows, DELETED where they delete.
        """
        numbers = self.latest.assign(keys)
        rows = self.log.next + np.arange(len(keys))
        if deleted is not None:
            rows[deleted] = DELETED
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
        self.log.append(batch)
        self._looked_up = 0
        return numbers, rows

    def take(self, keys: I64) -> pa.RecordBatch:
        """Rows of keys int64[n], in the order of the keys; an unknown key gives a row of nulls."""
        return self.log.take(self.latest.rows(keys))

    def columns(self, keys: I64, names: Sequence[str], times: I64 | None = None) -> dict[str, pa.Array]:
        """Columns of the rows of keys int64[n]; null where a key is unknown.

        With times int64[n] of a versioned table: of the rows that were valid then.

        Columns are dictionary-encoded with the table as dictionary, not copied, once its rows lie in one
        batch: batches are joined when as many rows were looked up since the last change as the table has.
        """
        self._looked_up += len(keys)
        if self.log.single_batch is None and self._looked_up >= len(self):
            self.log.join()
        joined = self.log.single_batch if len(keys) else None
        if joined is None:
            rows = self.latest.rows(keys) if times is None else self._rows_at(keys, times)
            absent, taken = int(np.count_nonzero(rows < 0)), self.log.take(rows)
            found = {name: taken.column(name) for name in names}
        else:
            index = self._index(keys, times, joined[0])
            absent, encoded = index.null_count, pa.DictionaryArray.from_arrays
            found = {name: encoded(index, joined[1].column(name), safe=False) for name in names}
        self.found, self.missing = self.found + len(keys) - absent, self.missing + absent
        return found

    def _index(self, keys: I64, times: I64 | None, first: int) -> pa.Array:
        """Rows of keys, counted from `first`: int32[n], null where a key has none."""
        if times is None:
            return self.latest.indices(keys, first)
        rows = self._rows_at(keys, times)
        return pa.array((rows - first).astype(np.int32), mask=rows < 0)

    def _rows_at(self, keys: I64, times: I64) -> I64:
        """Rows of keys int64[n] at times int64[n]; without versions the latest ones."""
        if self.versions is None:
            return self.latest.rows(keys)
        return self.versions.valid(self.latest.find(keys), keys, times, self.latest.keys)

    def join(self) -> None:
        """Join the rows into one batch, so that look-ups copy nothing until the table changes."""
        self.log.join()

    def rows(self) -> tuple[I64, pa.RecordBatch]:
        """All live rows: (keys int64[m], batch of m rows), in the order in which keys first appeared."""
        live = np.flatnonzero(self.latest.row >= 0)
        return self.latest.keys[live], self.log.take(self.latest.row[live])

    def mark(self) -> int:
        """Close the current generation and return its number."""
        return self.latest.mark()

    def touched(self, since: int) -> tuple[I64, npt.NDArray[np.bool_]]:
        """Keys int64[m] of `changed`, and bool[m]: they have a row."""
        changed = self.latest.changed(since)
        return self.latest.keys[changed], self.latest.row[changed] >= 0

    def changed(self, since: int = 0) -> tuple[I64, list[list[Any] | None]]:
        """Rows that changed after a generation of `mark` (0: all), in the order in which keys first appeared.

        Returns:
            Keys int64[m] and m rows. A row lists the columns in declared order as JSON types: binary as
                base64 text, an image as null because nothing reads it. A deleted key has None.
        """
        changed = self.latest.changed(since)
        rows: list[list[Any] | None] = [None] * len(changed)
        alive = np.flatnonzero(self.latest.row[changed] >= 0)
        for part, batch in self.log.pieces(self.latest.row[changed[alive]]):
            columns = [
                dtypes.json_values(batch.column(name), dtype) for name, dtype in self.table.columns.items()
            ]
            for place, values in zip(alive[part].tolist(), zip(*columns, strict=True), strict=True):
                rows[place] = list(values)
        return self.latest.keys[changed], rows

    def forget(self, time_ms: int, reached_ms: int = FIRST) -> bool:
        """Drop rows that no look-up as of a time (ms) or later needs, once they are many; true: some were.

        Args:
            time_ms: event time of the earliest look-up, ms.
            reached_ms: time up to which all rows are there.
        """
        if self.versions is None:
            return False
        self.versions.horizon = max(self.versions.horizon, time_ms)
        ended = self.versions.end(reached_ms, self.latest.keys)
        self.latest.delete(ended)
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
        latest, count = self.latest, len(self.latest)
        if count <= 2 * latest.live + FEW_KEYS:
            return
        kept = (latest.row[:count] >= 0) | (latest.generation[:count] > self._told)
        if self.versions is not None:
            kept_ms = self.table.max_age_ms or DELETED_KEPT_MS  # older rows are expired
            kept |= self.versions.known_after(self.versions.horizon - kept_ms, count)
        if 2 * np.count_nonzero(kept) + FEW_KEYS >= count:
            return
        old = np.flatnonzero(kept)
        if self.versions is not None:
            gone = latest.keys[:count][~kept]
            self.versions.dropped.add(self.versions.next, gone, most=max(FEW_KEYS, latest.live))
            self.versions.keep(old)
        latest.keep(old)

    @property
    def listed(self) -> int:
        """Deleted keys that are kept for `changed`."""
        count, latest = len(self.latest), self.latest
        return int(np.count_nonzero((latest.row[:count] < 0) & (latest.generation[:count] > self._told)))

    @property
    def overgrown(self) -> bool:
        """True when more deleted keys are kept for `changed` than keys have a row."""
        return self.listed > max(LISTED_KEYS, len(self))

    @property
    def keys(self) -> I64:
        """Keys that have a row: int64[m]."""
        return self.latest.keys[np.flatnonzero(self.latest.row >= 0)]

    @property
    def known(self) -> int:
        """Keys in memory, also those that were deleted of late."""
        return len(self.latest)

    @property
    def bytes(self) -> int:
        """Bytes of the rows and their index."""
        return self.log.bytes + self.latest.bytes + (0 if self.versions is None else self.versions.bytes)

    def _compact(self) -> None:
        """Copy the rows in use to a new log if they are less than half of it."""
        older = 0 if self.versions is None else self.versions.older
        if self.log.next <= 2 * (len(self) + older) + 4096:
            return
        used = self.latest.in_use()
        if self.versions is not None:
            used = np.union1d(used, self.versions.rows())
            self.versions.renumber(used)
        self.latest.renumber(used)
        log = RowLog(self.schema)
        for _, batch in self.log.pieces(used):
            log.append(batch)
        self.log = log
