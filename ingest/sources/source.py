"""Sources of logs: a Kafka cluster or a folder of files, both read as chunks of records with positions.

A source reads partitions of topics from explicit positions. It keeps no state that a checkpoint needs:
the caller passes the positions where reading goes on. `open_source` picks the source by its scheme.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from livectr.ingest.chunks import Chunk, Position, TopicPartition
from livectr.kernels.errors import ConfigError

if TYPE_CHECKING:
    from livectr.ingest.dead_letters.letters import DeadLetters
    from livectr.ingest.language.streams import Stream, Table


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

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Do not read these partitions for now (in place of the ones held before): back-pressure for a
        partition that runs ahead of the others. What has been read already still comes."""

    def lag(self) -> dict[TopicPartition, int]:
        """Records between the last one that `poll` returned and the end of each partition."""

    def bytes_read(self) -> dict[str, int]:
        """Topic → bytes read since `start`: of files what was fetched for the columns in use (see
        `ingest.sources.part_file.Part`), of Kafka keys and values of messages."""

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
        from livectr.ingest.sources.kafka import KafkaSource

        return KafkaSource(
            url, streams, until_end=until_end, dead_letters=dead_letters, columns=columns, **options
        )
    if url.startswith("file:"):
        from livectr.ingest.sources.files import FileSource

        return FileSource(
            url, streams, until_end=until_end, dead_letters=dead_letters, columns=columns, **options
        )
    raise ConfigError(f"source {url!r} is neither kafka://HOST:PORT nor file:DIR")
