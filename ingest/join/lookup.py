"""Look-up tables: latest row of each key of a compacted topic or of files."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import BEGINNING
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.row_log import RowLog
from livectr.ingest.language import dtypes
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Table
from livectr.ingest.limits import LIMITS, RecordLimits
from livectr.ingest.sources.source import open_source
from livectr.kernels.keys.keys import KeyNumbers

I64 = npt.NDArray[np.int64]


class LookupTable:
    """Latest row of each key of a `Table`, with vectorized look-up.

    Rows are appended to a log, and an index maps each key to its latest row. When half of the rows are
    outdated, live rows are copied to a new log: memory stays below about twice the live rows.

    Args:
        table: declaration of topic, key and columns.
    """

    def __init__(self, table: Table) -> None:
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
        keys = key_of(batch.column(self.table.key))
        numbers = self._numbers.assign(keys)
        self._grow(len(self._numbers))
        rows = self._log.next + np.arange(len(keys))
        if deleted is not None:
            rows[deleted] = -1
        latest = np.unique(numbers[::-1], return_index=True)[1]
        latest = len(numbers) - 1 - latest
        changed = numbers[latest]
        self._live -= int(np.count_nonzero(self._row[changed] >= 0))
        self._row[changed] = rows[latest]
        self._live += int(np.count_nonzero(self._row[changed] >= 0))
        self._keys[changed] = keys[latest]
        self._generation[changed] = self._current
        self._log.append(batch.select(self.schema.names).cast(self.schema))
        self._looked_up = 0
        if self._log.next > 2 * self._live + 4096:
            self._compact()

    def take(self, keys: I64) -> pa.RecordBatch:
        """Rows of keys int64[n], in the order of the keys; an unknown key gives a row of nulls."""
        return self._log.take(self._rows(keys))

    def columns(self, keys: I64, names: Sequence[str]) -> dict[str, pa.Array]:
        """Columns of the rows of keys int64[n]; null where a key is unknown.

        Columns are dictionary-encoded with the table as dictionary, so that nothing is copied. While the
        table changes, its rows lie in several batches and are copied instead. The batches are joined once as
        many rows were looked up since the last change as the table has.
        """
        rows = self._rows(keys)
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
        latest = self._log.take(self._row[changed[alive]])
        columns = [_json_values(latest.column(name), dtype) for name, dtype in self.table.columns.items()]
        for place, values in zip(alive.tolist(), zip(*columns, strict=True), strict=True):
            rows[place] = list(values)
        return self._keys[changed], rows

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
        live = np.flatnonzero(self._row >= 0)
        live = live[np.argsort(self._row[live])]
        old, self._log = self._log, RowLog(self.schema)
        for part in old.split(self._row[live]):
            self._log.append(old.take(part))
        self._row[live] = np.arange(len(live))


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
    """

    def __init__(
        self,
        tables: Sequence[Table],
        url: str,
        *,
        until_end: bool,
        dead_letters: DeadLetters,
        limits: RecordLimits = LIMITS,
    ) -> None:
        self.tables: Mapping[str, LookupTable] = {table.topic: LookupTable(table) for table in tables}
        self._source = None
        if not tables:
            return
        self._source = open_source(url, tables, until_end=until_end, dead_letters=dead_letters, limits=limits)
        places = [(topic, p) for topic, numbers in self._source.topics().items() for p in numbers]
        start = dict.fromkeys(places, BEGINNING)
        dead_letters.resume(start)  # tables are read again after a restart, their bad rows too
        self._source.assign(start)
        self._source.start()
        while not all(self._source.at_end(topic, p) for topic, p in places):
            self.follow(0.1)
        for table in self.tables.values():
            table.join()

    def follow(self, max_wait_s: float = 0.0) -> None:
        """Apply the rows that were written since the last call."""
        for chunk in self._source.poll(max_wait_s) if self._source is not None else ():
            self.tables[chunk.topic].upsert(chunk.batch, chunk.deleted)

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
