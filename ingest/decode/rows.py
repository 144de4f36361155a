"""Decoded rows of one chunk, combined from runs of messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.dead_letters.letters import Reason

_I64 = npt.NDArray[np.int64]


class UnreadableError(ValueError):
    """Messages of a schema registry that cannot be read; the text says why, with the id of their schema."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True)
class Read:
    """Batch of m rows, read from n messages of one schema.

    Args:
        batch: m rows with the wanted columns that the schema has; a batch without columns has no rows, so it
            has at least one.
        rows: int64[m], number of each row's message.
        refused: the other messages' numbers, each with the reason.
        names: names of all columns of the schema.
    """

    batch: pa.RecordBatch
    rows: _I64
    refused: Sequence[tuple[int, str]] = ()
    names: Collection[str] = ()


@dataclass(frozen=True)
class Parsed:
    """Batch of n rows that are read and not cleaned.

    Args:
        batch: n rows.
        offset: int64[n], offset of each row.
        index: int32[n], index within the Arrow message.
        raw: returns the original bytes of a row, for its dead letter.
    """

    batch: pa.RecordBatch
    offset: _I64
    index: npt.NDArray[np.int32]
    raw: Callable[[int], bytes]


class Decoded:
    """Batch of n clean rows with their positions.

    Args:
        batch: n rows.
        offset: int64[n], offset of each row.
        index: int32[n], index within the Arrow message.
        deleted: bool[n], rows that delete their key; None where no row does.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        offset: _I64,
        index: npt.NDArray[np.int32],
        deleted: npt.NDArray[np.bool_] | None,
    ) -> None:
        self.batch, self.offset, self.index, self.deleted = batch, offset, index, deleted

    @staticmethod
    def empty(schema: pa.Schema) -> Decoded:
        """Batch of 0 rows."""
        return Decoded(
            pa.RecordBatch.from_pylist([], schema), np.empty(0, np.int64), np.empty(0, np.int32), None
        )

    @staticmethod
    def deletes(
        schema: pa.Schema, columns: Mapping[str, Sequence[object]], offsets: Sequence[int]
    ) -> Decoded:
        """Rows that delete keys of a table, with the known columns and the offset of each."""
        arrays = [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(len(offsets), field.type)
            for field in schema
        ]
        return Decoded(
            pa.RecordBatch.from_arrays(arrays, schema=schema),
            np.array(offsets, np.int64),
            np.zeros(len(offsets), np.int32),
            np.ones(len(offsets), bool),
        )

    def within_append_time(
        self, time: str, offsets: _I64, append_ms: _I64, max_ahead_ms: int
    ) -> tuple[Decoded, list[tuple[int, str]]]:
        """Separate the rows whose event time exceeds the append time of their message by more than max_ahead.

        Args:
            time: name of the time column.
            offsets: offsets of all messages, ascending.
            append_ms: append times of all messages in ms.
            max_ahead_ms: greatest allowed difference.

        Returns:
            (rows within the bound, (row, reason) of each other row).
        """
        if not len(self.offset):
            return self, []
        times = self.batch.column(time).to_numpy()
        appended = append_ms[np.searchsorted(offsets, self.offset)]
        keep = times <= appended + max_ahead_ms
        if keep.all():
            return self, []
        ahead = [
            (
                row,
                f"{time} is {times[row]}, but the broker took the record at {appended[row]}, "
                f"{(int(times[row]) - int(appended[row])) / 1000:.3f} s earlier "
                f"(max_ahead {max_ahead_ms / 1000:g} s)",
            )
            for row in np.flatnonzero(~keep).tolist()
        ]
        part = Decoded(self.batch.filter(pa.array(keep)), self.offset[keep], self.index[keep], None)
        return part, ahead

    @staticmethod
    def merged(parts: Sequence[Decoded], schema: pa.Schema) -> Decoded:
        """Combine parts, in order of position."""
        parts = [part for part in parts if len(part.offset)]
        if not parts:
            return Decoded.empty(schema)
        if len(parts) == 1:
            return parts[0]
        batch = pa.concat_batches([part.batch for part in parts])
        offset = np.concatenate([part.offset for part in parts])
        index = np.concatenate([part.index for part in parts])
        deleted = None
        if any(part.deleted is not None for part in parts):
            masks = [
                np.zeros(len(part.offset), bool) if part.deleted is None else part.deleted for part in parts
            ]
            deleted = np.concatenate(masks)
        order = np.lexsort((index, offset))
        if (np.diff(order) == 1).all():
            return Decoded(batch, offset, index, deleted)
        deleted = deleted[order] if deleted is not None else None
        return Decoded(batch.take(pa.array(order)), offset[order], index[order], deleted)
