"""Look-up tables: the latest row of each key of a compacted topic or of files, and the rows before it that
events may still look up."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest import metrics
from livectr.ingest.chunks import BEGINNING, TopicPartition
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.row_log import RowLog
from livectr.ingest.language import dtypes
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Table
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.ingest.sources.source import open_source
from livectr.kernels.keys.keys import KeyNumbers
from livectr.kernels.stream.clock import FIRST, LAST
from livectr.kernels.stream.versions import RowVersions

I64 = npt.NDArray[np.int64]

WARN_AFTER_S = 5.0

KEY, TIME, ROW = "#key", "#time", "#row"
"""Columns of saved rows besides their own: the key, the time from which a row is valid, and its number."""

_log = logging.getLogger(__name__)


class LookupTable:
    """Latest row of each key of a `Table`, with vectorized look-up.

    Rows are appended to a log, and an index maps each key to its latest row. When half of the rows are
    outdated, live rows are copied to a new log: memory stays below about twice the live rows.

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
        self.versions = RowVersions() if versioned else None

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
        self._log.append(batch)
        self._looked_up = 0
        return numbers, rows

    def take(self, keys: I64) -> pa.RecordBatch:
        """Rows of keys int64[n], in the order of the keys; an unknown key gives a row of nulls."""
        return self._log.take(self._rows(keys))

    def columns(self, keys: I64, names: Sequence[str], times: I64 | None = None) -> dict[str, pa.Array]:
        """Columns of the rows of keys int64[n]; null where a key is unknown.

        With times int64[n] of a versioned table: of the rows that were valid then.

        Columns are dictionary-encoded with the table as dictionary, so that nothing is copied. While the
        table changes, its rows lie in several batches and are copied instead. The batches are joined once as
        many rows were looked up since the last change as the table has.
        """
        rows = self._rows(keys) if self.versions is None or times is None else self._rows_at(keys, times)
        missing = rows < 0
        absent = int(np.count_nonzero(missing))
        self.found, self.missing = self.found + len(keys) - absent, self.missing + absent
        self._looked_up += len(keys)
        if self._log.single_batch is None and self._looked_up >= self._live:
            self._log.join()
        if self._log.single_batch is None or not len(keys):
            rows_of_keys = self._log.take(rows)
            return {name: rows_of_keys.column(name) for name in names}
        start, batch = self._log.single_batch
        index = pa.array((rows - start).astype(np.int32), mask=missing if absent else None)
        return {name: pa.DictionaryArray.from_arrays(index, batch.column(name), safe=False) for name in names}

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

    def changed(self, since: int = 0) -> tuple[I64, list[list[Any] | None]]:
        """Rows that changed, in the order in which their keys first appeared.

        Args:
            since: generation number from `mark`; 0 for all rows.

        Returns:
            Keys int64[m] and m rows. A row lists the columns in declared order as JSON types: binary as
                base64 text, an image as null because nothing reads it. A deleted key has None.
        """
        changed = np.flatnonzero(self._generation > since)
        rows: list[list[Any] | None] = [None] * len(changed)
        alive = np.flatnonzero(self._row[changed] >= 0)
        for part, latest in self._log.pieces(self._row[changed[alive]]):
            columns = [_json_values(latest.column(name), dtype) for name, dtype in self.table.columns.items()]
            for place, values in zip(alive[part].tolist(), zip(*columns, strict=True), strict=True):
                rows[place] = list(values)
        return self._keys[changed], rows

    def forget(self, time_ms: int) -> bool:
        """Drop the rows that no look-up as of a time or later needs, once they are many; true: some were."""
        if self.versions is None or not self.versions.forget(time_ms):
            return False
        self._compact()
        return True

    @property
    def bytes(self) -> int:
        """Bytes of the rows and their index."""
        index = self._row.nbytes + self._keys.nbytes + self._generation.nbytes
        return self._log.bytes + index + (0 if self.versions is None else self.versions.bytes)

    def export(self, time_ms: int, share: tuple[int, int] = (0, 1)) -> pa.Table:
        """Rows of a versioned table that a look-up as of a time or later may need; deleted keys have nulls.

        Args:
            time_ms: in ms.
            share: (rank, ranks): the keys that the rank saves.
        """
        versions = self.versions
        if versions is None:
            raise ValueError(f"{self.table.topic} has no versions")
        versions.forget(time_ms, at_once=True)
        entries = versions.entries()
        entries = entries.take(self._keys[entries.number] % share[1] == share[0])
        saved = pa.Table.from_batches([rows for _, rows in self._log.pieces(entries.row)], self.schema)
        for name, values in ((KEY, self._keys[entries.number]), (TIME, entries.time), (ROW, entries.row)):
            saved = saved.append_column(name, pa.array(values))
        return saved

    def restore(self, saved: pa.Table) -> None:
        """Load rows of `export` into a new table, for look-ups as of a time; latest rows come from the log.

        A column that was not saved is null.
        """
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
            (self._generation[number] == 0) & (self.versions.at(number, np.full_like(number, LAST)) >= 0)
        ]
        if len(gone):
            newest = int(self.versions.newest(number).max())
            self.versions.put(gone, np.full_like(gone, newest), np.full_like(gone, -1))

    def _rows_at(self, keys: I64, times: I64) -> I64:
        assert self.versions is not None
        return self.versions.at(self._numbers.find(keys).astype(np.int64), times)

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


def _json_values(column: pa.Array, dtype: str) -> Sequence[Any]:
    if dtype == "image":
        return [None] * len(column)
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    return values


class Lookups:
    """Look-up tables of a pipeline, read completely by the constructor and then followed.

    Args:
        tables: declarations; empty reads nothing.
        url: `kafka://…` or `file:…`.
        until_end: stop at the end that the logs have at the start.
        dead_letters: receives bad rows. Every rank reads every table, so only one rank should keep letters.
        limits: records beyond them become dead letters.
        versioned: topics of tables whose rows are looked up as of a time.
        saved: rows of a checkpoint, by topic (`export`).
    """

    def __init__(
        self,
        tables: Sequence[Table],
        url: str,
        *,
        until_end: bool,
        dead_letters: DeadLetters,
        limits: RecordLimits = LIMITS,
        versioned: Collection[str] = (),
        saved: Mapping[str, pa.Table] = MappingProxyType({}),
    ) -> None:
        self.tables: Mapping[str, LookupTable] = {
            table.topic: LookupTable(table, versioned=table.topic in versioned) for table in tables
        }
        for topic, table in self.tables.items():
            if topic in saved and table.versions is not None:
                table.restore(saved[topic])
        self._source = None
        self._horizon = FIRST
        self._reached = FIRST  # with every versioned table read to the end that it had then
        self._asked: tuple[int, int] | None = None  # (number of the question, order)
        self._warn_at_s = float("inf")
        self._awaited: set[TopicPartition] = set()
        self._versioned: list[TopicPartition] = []
        if not tables:
            return
        # A row that is written while the tables are read belongs to impressions that are written then.
        until_end = until_end and not (versioned and url.startswith("kafka:"))
        self._source = open_source(url, tables, until_end=until_end, dead_letters=dead_letters, limits=limits)
        places = [(topic, p) for topic, numbers in self._source.topics().items() for p in numbers]
        start = dict.fromkeys(places, BEGINNING)
        dead_letters.resume(start)  # tables are read again after a restart, their bad rows too
        self._source.assign(start)
        self._source.start()
        while not all(self._source.at_end(topic, p) for topic, p in places):
            self.follow(0.1)
        for table in self.tables.values():
            table.read()
            table.join()
        if not until_end:
            self._versioned = [place for place in places if place[0] in versioned]
        self._measure()

    def follow(self, max_wait_s: float = 0.0) -> None:
        """Apply the rows that were written since the last call."""
        chunks = self._source.poll(max_wait_s) if self._source is not None else []
        for chunk in chunks:
            self.tables[chunk.topic].upsert(chunk.batch, chunk.deleted)
        if chunks:
            self._measure()

    def reach(self, order: int, slack_ms: int) -> int:
        """Order below which examples may leave, LAST for all; examples up to `order` want to.

        While the order rises, the tables' present ends are asked for, and it is reached when they are read
        up to there. So a row that the broker has before the log's records of an order is seen by the examples
        of that order, and a quiet table holds nothing back.

        Args:
            order: the log is read up to it.
            slack_ms: time by which an example's order may be beyond the order that is reached.
        """
        if self._source is None or not self._versioned:
            return LAST
        if self._asked is not None and self._source.answered >= self._asked[0]:
            self._awaited = {place for place in self._awaited if not self._source.at_end(*place)}
            if not self._awaited:
                self._reached, self._asked = self._asked[1], None
        if self._asked is None and order > self._reached:
            self._asked, self._awaited = (self._source.ask_ends(), order), set(self._versioned)
            self._warn_at_s = time.monotonic() + WARN_AFTER_S
        if self._asked is not None and time.monotonic() >= self._warn_at_s:
            self._warn_at_s = float("inf")
            names = ", ".join(sorted({topic for topic, _ in self._awaited}))
            _log.warning("examples have waited %.0f s for look-up tables to be read: %s", WARN_AFTER_S, names)
        return LAST if self._reached + slack_ms >= order else self._reached + slack_ms

    def forget(self, time_ms: int) -> None:
        """Drop the rows that no look-up as of a time or later needs, once they are many."""
        self._horizon = max(self._horizon, time_ms)
        if any([table.forget(self._horizon) for table in self.tables.values()]):
            self._measure()

    def export(self, share: tuple[int, int]) -> dict[str, pa.Table]:
        """Rows of each versioned table for a checkpoint; see `LookupTable.export`."""
        timed = {topic: table for topic, table in self.tables.items() if table.versions is not None}
        return {topic: table.export(self._horizon, share) for topic, table in timed.items()}

    def _measure(self) -> None:
        for topic, table in self.tables.items():
            metrics.lookup_bytes.labels(topic).set(table.bytes)
            versions = table.versions
            metrics.lookup_versions.labels(topic).set(0 if versions is None else versions.older)

    def mark(self) -> None:
        """Close the current generation of every table."""
        for table in self.tables.values():
            table.mark()

    def bytes_read(self) -> dict[str, int]:
        """Topic → bytes read so far."""
        return self._source.bytes_read() if self._source is not None else {}

    def close(self) -> None:
        """Stop reading."""
        if self._source is not None:
            self._source.close()
