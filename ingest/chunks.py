"""Records between a source and the join: chunks of decoded records, each with its position in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TopicPartition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """The next record to read; positions of one partition compare as their records follow each other.

    offset: Kafka message offset; in files, the running record number of the partition.
    index: record inside an Arrow IPC message; 0 for one-event messages and files.
    """

    offset: int
    index: int


BEGINNING = Position(0, 0)


class UnreadableMessage(bytes):
    """Stands for `rows` messages that the broker holds and that cannot be unpacked; `detail` says why.

    Its bytes begin as an Arrow message does, so that nobody has to look for it among JSON records.
    """

    detail: str
    rows: int

    def __new__(cls, detail: str, rows: int = 1) -> UnreadableMessage:
        self = super().__new__(cls, b"\xff\xff\xff\xff")
        self.detail, self.rows = detail, rows
        return self


@dataclass(frozen=True)
class Chunk:
    """Decoded records of one topic partition, in log order.

    batch: n rows, the columns of the declaration that are in use; nulls filled, JSON fields taken out,
        rows that `where` rejects removed.
    offset: int64[n], index: int32[n]: position of each row; positions rise strictly.
    read_ms: wall clock when the records were read.
    next: position after the last record READ, whether or not it survived; n may be 0.
    deleted: bool[n] for a table whose log holds deletes, else None: such a row has its key and nulls.
    """

    topic: str
    partition: int
    batch: pa.RecordBatch
    offset: npt.NDArray[np.int64]
    index: npt.NDArray[np.int32]
    read_ms: int
    next: Position
    deleted: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)
