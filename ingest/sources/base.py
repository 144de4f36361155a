"""What every source gives: chunks of decoded, cleaned records, each record with its position.

A source reads partitions of topics from explicit positions. It keeps no state that a checkpoint needs:
who restarts it says where to go on. `open_source` picks the source by the scheme of its URL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kernels.errors import ConfigError

if TYPE_CHECKING:
    from ingest.deadletter import DeadLetters
    from ingest.streams import Stream, Table

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


class Source(Protocol):
    """Reads topics in the background; every method belongs to the caller's one thread."""

    def topics(self) -> dict[str, list[int]]:
        """Partitions of every declared topic. Raises ConnectError, ConfigError for a missing topic."""

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Say which partitions to read and from where, before `start`."""

    def start(self) -> None:
        """Start to read in the background."""

    def poll(self, max_wait_s: float) -> list[Chunk]:
        """What has been read so far; waits up to `max_wait_s` for the first chunk.

        Raises what the reading thread raised.
        """

    def at_end(self, topic: str, partition: int) -> bool:
        """Whether `poll` has returned everything up to the end: the end at the start when the source
        reads until its end, the current end when it follows its logs."""

    def end_offsets(self) -> dict[TopicPartition, int]:
        """The end that `at_end` compares with, as far as it is known."""

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Do not read these partitions for now (in place of the ones held before): back-pressure for a
        partition that runs ahead of the others. What has been read already still comes."""

    def lag(self) -> dict[TopicPartition, int]:
        """Records between the last one that `poll` returned and the end of each partition."""

    def bytes_read(self) -> dict[str, int]:
        """Topic → bytes read since `start`: of files what was fetched for the columns in use (see
        `ingest.sources.parts.Part`), of Kafka keys and values of messages."""

    def close(self) -> None:
        """Stop reading and free everything; calling it twice is fine."""


def open_source(
    url: str,
    streams: Sequence[Stream | Table],
    *,
    until_end: bool,
    dead_letters: DeadLetters,
    columns: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> Source:
    """The source behind `url`: `kafka://host:port[,host:port]` or `file:DIR`.

    until_end: stop at the end that the logs have when reading starts; else follow them.
    columns: topic → columns in use; only these are decoded. None means every declared column.
    options: see `KafkaSource` and `FileSource`.
    """
    if url.startswith("kafka:"):
        from ingest.sources.kafka import KafkaSource

        return KafkaSource(
            url, streams, until_end=until_end, dead_letters=dead_letters, columns=columns, **options
        )
    if url.startswith("file:"):
        from ingest.sources.files import FileSource

        return FileSource(
            url, streams, until_end=until_end, dead_letters=dead_letters, columns=columns, **options
        )
    raise ConfigError(f"source {url!r} is neither kafka://HOST:PORT nor file:DIR")


def log_folder(url: str) -> Path:
    """`file:DIR` or `file:///DIR` → DIR; ConfigError when it is not of that form."""
    scheme, _, rest = url.partition(":")
    if scheme != "file" or not rest.strip("/"):
        raise ConfigError(f"log folder {url!r} is not file:DIR")
    return Path(rest.removeprefix("//"))
