"""Rows of record batches under running numbers: the memory of joins and look-up tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.decode.arrow_rows import as_one

I64 = npt.NDArray[np.int64]
FOREVER = int(np.iinfo(np.int64).max)


@dataclass
class _Part:
    start: int
    batch: pa.RecordBatch
    until: int


class RowLog:
    """Appends record batches of one schema and gives rows back by number: 0, 1, 2… in order of arrival.

    Small parts are joined as they pile up, a part with those before it that are no larger, up to `part_rows`:
    each row is copied O(log) times and there are few parts to search. None: no limit.
    """

    def __init__(self, schema: pa.Schema, *, part_rows: int | None = None) -> None:
        self.schema = schema
        self._limit = FOREVER if part_rows is None else part_rows
        self._parts: list[_Part] = []
        self.next = 0

    def append(self, batch: pa.RecordBatch, *, until: int = FOREVER) -> None:
        """Add rows; `until` is the last time at which somebody may ask for them (see `drop`)."""
        if not batch.num_rows:
            return
        part = _Part(self.next, batch, until)
        self.next += batch.num_rows
        while self._parts:
            last = self._parts[-1]
            rows = last.batch.num_rows
            adjacent = last.start + rows == part.start
            if not adjacent or rows > part.batch.num_rows or rows + part.batch.num_rows > self._limit:
                break
            joined = pa.concat_batches([last.batch, part.batch])
            part = _Part(last.start, joined, max(last.until, part.until))
            self._parts.pop()
        self._parts.append(part)

    def drop(self, before: int) -> None:
        """Forget the parts whose `until` lies before a time."""
        if any(part.until < before for part in self._parts):
            self._parts = [part for part in self._parts if part.until >= before]

    @property
    def whole(self) -> tuple[int, pa.RecordBatch] | None:
        """(number of its first row, all rows) when they lie in one batch."""
        return (self._parts[0].start, self._parts[0].batch) if len(self._parts) == 1 else None

    def join(self) -> None:
        """Bring all rows into one batch, which makes `whole`; nothing may have been dropped between them."""
        if len(self._parts) > 1:
            batch = pa.concat_batches([part.batch for part in self._parts])
            self._parts = [_Part(self._parts[0].start, batch, max(part.until for part in self._parts))]

    def take(self, rows: I64) -> pa.RecordBatch:
        """The rows of these numbers, in their order; -1 gives a row of nulls. They must not be dropped."""
        if len(self._parts) == 1 and len(rows):
            part = self._parts[0]
            missing = rows < 0
            if missing.any():
                return part.batch.take(pa.array(rows - part.start, mask=missing))
            return _take(part.batch, rows - part.start)
        order = np.argsort(rows, kind="stable")
        sorted_rows = rows[order]
        starts = np.array([part.start for part in self._parts], np.int64)
        ends = np.array([part.start + part.batch.num_rows for part in self._parts], np.int64)
        begin, end = np.searchsorted(sorted_rows, starts), np.searchsorted(sorted_rows, ends)
        absent = int(np.searchsorted(sorted_rows, 0))
        if absent + int((end - begin).sum()) != len(rows):
            raise KeyError("row number was never given out, or is forgotten")
        taken = [_nulls(self.schema, absent)] if absent or not len(rows) else []
        for i in np.flatnonzero(end > begin).tolist():
            taken.append(_take(self._parts[i].batch, sorted_rows[begin[i] : end[i]] - self._parts[i].start))
        joined = as_one(taken)
        if np.all(order[1:] > order[:-1]):
            return joined
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return joined.take(pa.array(back))


def _take(batch: pa.RecordBatch, rows: I64) -> pa.RecordBatch:
    """Rows of one batch; a run of neighbours is a slice, without a copy."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and np.all(np.diff(rows) == 1):
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))


def _nulls(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)
