"""Chunks of decoded records between a source and the join, each record with its position in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TopicPartition: TypeAlias = tuple[str, int]
Files: TypeAlias = Sequence[Sequence[Any]]
"""JSON value: of files in order the name, the number of the first record, the number after the last or None
while that is unknown, how many files come before it and their bytes, and `part_file.first_record` of it.
Older checkpoints lack the last two."""
NO_FILES: Mapping[TopicPartition, Files] = MappingProxyType({})


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """Position of the next record to read; positions of a partition compare in log order.

    Args:
        offset: Kafka message offset; in files, the running record number of the partition.
        index: record inside an Arrow IPC message; 0 for one-event messages and files.
    """

    offset: int
    index: int


BEGINNING = Position(0, 0)


class UnreadableMessage(bytes):
    """Placeholder for `rows` messages of the broker that cannot be decompressed; `detail` is the reason.

    Its bytes begin as an Arrow message does, so that it is not looked for among JSON records.
    """

    detail: str
    rows: int

    def __new__(cls, detail: str, rows: int = 1) -> UnreadableMessage:
        """Make the placeholder for `rows` messages."""
        self = super().__new__(cls, b"\xff\xff\xff\xff")
        self.detail, self.rows = detail, rows
        return self


@dataclass(frozen=True)
class Chunk:
    """Decoded records of one topic partition, in log order.

    Args:
        topic: of the records.
        partition: of the records.
        batch: n rows with the columns in use; nulls are filled, JSON fields extracted, and rows that `where`
            rejects are removed.
        offset: int64[n], offset of each row.
        index: int32[n], index within the Arrow message. Positions (offset, index) increase strictly.
        next: position after the last record READ, whether or not it survived; n may be 0.
        deleted: bool[n] for a table whose log holds deletes, else None. A deleted row has its key and nulls.
    """

    topic: str
    partition: int
    batch: pa.RecordBatch
    offset: npt.NDArray[np.int64]
    index: npt.NDArray[np.int32]
    next: Position
    deleted: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def split(self, rows: int) -> list[Chunk]:
        """Parts of at most `rows` rows, in log order; at least one."""
        return [self._part(begin, begin + rows) for begin in range(0, max(1, len(self)), rows)]

    def _part(self, begin: int, end: int) -> Chunk:
        last = end >= len(self)
        return replace(
            self,
            batch=self.batch.slice(begin, end - begin),
            offset=self.offset[begin:end],
            index=self.index[begin:end],
            next=self.next if last else Position(int(self.offset[end]), int(self.index[end])),
            deleted=None if self.deleted is None else self.deleted[begin:end],
        )
