"""Rows of look-up tables in checkpoints: those that examples may still look up as of their time.

A table is read from its topic again after a restart. The topic may have been compacted meanwhile, so rows
that look-ups as of a time need are saved: whole, or as changes since a place in the sequence of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.decode.arrow_size import row_bytes
from livectr.ingest.join.lookup import LookupTable
from livectr.kernels.stream.clock import FIRST, LAST
from livectr.kernels.stream.row_budget import KEY_BYTES, RowBudget, Rows
from livectr.kernels.stream.timed_rows import TimedRows, rows_that_count
from livectr.kernels.stream.versions import Entries

I64 = npt.NDArray[np.int64]
Share = tuple[int, int]
"""(rank, ranks): a rank saves the keys k with k mod ranks = rank."""

KEY, TIME, ROW = "#key", "#time", "#row"
"""Columns of saved rows besides their own: the key, the time from which a row is valid, and its number."""
NO_KEYS = np.empty(0, np.int64)


class SavedRows:
    """Rows of a versioned look-up table, as a checkpoint holds them. It keeps no state of its own.

    Args:
        table: a table with versions.

    Raises:
        ValueError: the table has no versions.
    """

    def __init__(self, table: LookupTable) -> None:
        if table.versions is None:
            raise ValueError(f"{table.table.topic} has no versions")
        self._table = table
        self._versions: TimedRows = table.versions

    # Save

    @property
    def bounds(self) -> dict[str, Any]:
        """Values of JSON types that tell which of successive changes count; saved with them."""
        return self._versions.bounds

    @property
    def places(self) -> tuple[int, int]:
        """Places in the sequence of rows: the first since which `changes` are known, and the next."""
        return self._versions.dropped.first, self._versions.next

    def export(self, time_ms: int, share: Share = (0, 1)) -> pa.Table:
        """Rows for look-ups as of a time (ms) or later; deleted keys have nulls."""
        self._versions.horizon = max(self._versions.horizon, time_ms)
        self._versions.forget(self._versions.horizon, at_once=True)
        return self._rows_of(self._versions.changed(0, self._table.latest.keys, share))

    def count(self, since: int, share: Share) -> int:
        """Number of rows and keys of `changes`."""
        entries = self._versions.changed(since, self._table.latest.keys, share)
        return len(entries.number) + len(self._versions.dropped.since(since, share))

    def changes(self, since: int, share: Share) -> tuple[pa.Table, I64]:
        """Rows that came at a place or later, as `export`, and keys int64[m] that left memory before them.

        Args:
            since: a place from `places`; 0: all rows.
            share: keys that are asked for.
        """
        if not since:
            return self.export(self._versions.horizon, share), NO_KEYS
        entries = self._versions.changed(since, self._table.latest.keys, share)
        return self._rows_of(entries), self._versions.dropped.since(since, share)

    def _rows_of(self, entries: Entries) -> pa.Table:
        table = self._table
        rows = pa.Table.from_batches([part for _, part in table.log.pieces(entries.row)], table.schema)
        keys = table.latest.keys[entries.number]
        for name, values in ((KEY, keys), (TIME, entries.time), (ROW, entries.row)):
            rows = rows.append_column(name, pa.array(values))
        return rows

    # Restore

    def restore(self, saved: pa.Table, bounds: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Load rows of `export` into a new table, for look-ups as of a time; latest rows come from the log.

        A column that was not saved is null.

        Args:
            saved: rows of `export`.
            bounds: of the rows.
        """
        table = self._table
        self._versions.restore(bounds)
        for batch in saved.to_batches():
            arrays = [
                batch.column(field.name).cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(len(batch), field.type)
                for field in table.schema
            ]
            time = table.schema.get_field_index(table.table.time)
            arrays[time] = batch.column(TIME)
            rows = pa.RecordBatch.from_arrays(arrays, schema=table.schema)
            table.append(batch.column(KEY).to_numpy(), rows, batch.column(ROW).to_numpy() < 0)

    def complete(self) -> None:
        """Note that the log was read to its end: restored keys that it lacks were deleted meanwhile."""
        table, versions = self._table, self._versions
        number = np.arange(len(table.latest))
        rows, _ = versions.at(number, np.full_like(number, LAST))
        gone = number[(table.latest.generation[number] == 0) & (rows >= 0)]
        if len(gone):
            newest = int(versions.newest(number).max())
            versions.put(gone, np.full_like(gone, newest), np.full_like(gone, -1))
        if versions.budget is not None and versions.budget.clock > FIRST:
            self._fill(versions.budget)
        table.forget(versions.horizon)

    def _fill(self, budget: RowBudget) -> None:
        """Put the rows of a restored table into its budget."""
        table, versions = self._table, self._versions

        def sized(number: I64, time: I64, row: I64) -> Rows:
            sizes = np.zeros(len(row), np.int64)
            held = np.flatnonzero(row >= 0)
            for part, rows in table.log.pieces(row[held]):
                sizes[held[part]] = KEY_BYTES + row_bytes(rows)
            return Rows(number, time, sizes)

        number = np.arange(len(table.latest))
        row, since = versions.at(number, np.full_like(number, budget.clock))
        row[budget.gone(table.latest.keys[number], since, budget.clock)] = -1
        entries = versions.entries()
        later = entries.take(entries.time > budget.clock)
        budget.fill(sized(number, since, row), sized(later.number, later.time, later.row))


def kept_rows(parts: Sequence[Mapping[str, npt.NDArray[Any]]], bounds: Mapping[str, Any]) -> pa.Table:
    """Rows of a table, of successive changes: those that `SavedRows.export` would save.

    Args:
        parts: "rows.arrow" and "left" of each, as far as it has any.
        bounds: of the last moment.
    """
    tables, left = [], []
    for number, part in enumerate(parts):
        left.append(part.get("left", NO_KEYS))
        if "rows.arrow" in part:
            with pa.ipc.open_file(part["rows.arrow"]) as reader:
                tables.append((number, reader.read_all()))
    if not tables:
        return pa.table({name: NO_KEYS for name in (KEY, TIME, ROW)})
    place = np.repeat([number for number, _ in tables], [len(table) for _, table in tables])
    saved = pa.concat_tables([table for _, table in tables])
    key, time, row = (saved.column(name).to_numpy() for name in (KEY, TIME, ROW))
    count = rows_that_count(Entries(key, time, place, row), left, bounds["horizon"])
    count &= time > bounds["expired"]
    if "clock" in bounds:
        cuts = RowBudget(0)
        cuts.restore(bounds)
        count &= ~cuts.gone(key, time, bounds["horizon"])
    return saved.filter(pa.array(count))
