"""Append-only log of rows in record batches, addressed by row number.

It is the memory of joins and look-up tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.decode.arrow_rows import concat_rows

I64 = npt.NDArray[np.int64]
FOREVER = int(np.iinfo(np.int64).max)
PART_BYTES = (1 << 31) - (1 << 20)
"""Greatest size of a merged part: Arrow's texts and lists have offsets of 31 bits."""


@dataclass
class _Part:
    start: int
    batch: pa.RecordBatch
    until: int


class RowLog:
    """Append-only rows of one schema, addressed by number: 0, 1, 2… in order of arrival.

    Small parts are merged with the parts before them that are no larger (as in an LSM tree), up to
    `part_rows` and `PART_BYTES`. Each row is copied O(log n) times and few parts have to be searched.

    Args:
        schema: of all rows.
        part_rows: greatest size of a merged part; None for no limit.
    """

    def __init__(self, schema: pa.Schema, *, part_rows: int | None = None) -> None:
        self.schema = schema
        self._limit = FOREVER if part_rows is None else part_rows
        self._parts: list[_Part] = []
        self.next = 0

    def append(self, batch: pa.RecordBatch, *, until: int = FOREVER) -> None:
        """Add rows.

        Args:
            batch: rows of the schema.
            until: last time at which the rows may be read (see `drop`).
        """
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
            if last.batch.nbytes + part.batch.nbytes > PART_BYTES:
                break
            joined = pa.concat_batches([last.batch, part.batch])
            part = _Part(last.start, joined, max(last.until, part.until))
            self._parts.pop()
        self._parts.append(part)

    def drop(self, before: int) -> None:
        """Drop the parts whose `until` is before a time."""
        if any(part.until < before for part in self._parts):
            self._parts = [part for part in self._parts if part.until >= before]

    @property
    def single_batch(self) -> tuple[int, pa.RecordBatch] | None:
        """(number of the first row, all rows) when all rows lie in one batch, else None."""
        return (self._parts[0].start, self._parts[0].batch) if len(self._parts) == 1 else None

    @property
    def bytes(self) -> int:
        """Bytes of the rows."""
        return sum(part.batch.nbytes for part in self._parts)

    def join(self) -> None:
        """Join all rows into one batch, if that is within `PART_BYTES`.

        No part between them may have been dropped.
        """
        if len(self._parts) > 1 and self.bytes <= PART_BYTES:
            batch = pa.concat_batches([part.batch for part in self._parts])
            self._parts = [_Part(self._parts[0].start, batch, max(part.until for part in self._parts))]

    def take(self, rows: I64) -> pa.RecordBatch:
        """Gather rows by number, in the order given; -1 gives a row of nulls.

        Raises:
            KeyError: a number was never assigned, or its part is dropped.
        """
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
            raise KeyError("row number was never assigned, or its rows are dropped")
        gathered = [_nulls(self.schema, absent)] if absent or not len(rows) else []
        for i in np.flatnonzero(end > begin).tolist():
            gathered.append(
                _take(self._parts[i].batch, sorted_rows[begin[i] : end[i]] - self._parts[i].start)
            )
        joined = concat_rows(gathered)
        if np.all(order[1:] > order[:-1]):
            return joined
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return joined.take(pa.array(back))

    def pieces(self, rows: I64) -> Iterator[tuple[slice, pa.RecordBatch]]:
        """Gather many rows in pieces: yields which of `rows` they are, and the rows; see `take`."""
        most = max(1, int(len(rows) * PART_BYTES / (4 * max(1, self.bytes))))
        # Rows differ in size: a piece that is too large is halved.
        left = [slice(start, min(start + most, len(rows))) for start in range(0, len(rows), most)][::-1]
        while left:
            part = left.pop()
            try:
                yield part, self.take(rows[part])
            except pa.ArrowInvalid:
                if part.stop - part.start == 1:
                    raise
                middle = (part.start + part.stop) // 2
                left += [slice(middle, part.stop), slice(part.start, middle)]


def _take(batch: pa.RecordBatch, rows: I64) -> pa.RecordBatch:
    """Gather rows of one batch; consecutive rows are a slice, without a copy."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and np.all(np.diff(rows) == 1):
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))


def _nulls(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)
