"""Interface of log sources: a Kafka cluster or a folder of files, read as chunks of records with positions.

A source reads partitions of topics from explicit positions. It keeps no state that a checkpoint needs: the
caller passes the positions where reading starts. `open_source` selects the source by the URL's scheme.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from livectr.ingest.chunks import NO_FILES, Chunk, Files, Position, TopicPartition
from livectr.ingest.sources.background import QUEUE_BYTES
from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from livectr.ingest.dead_letters.letters import DeadLetters
    from livectr.ingest.language.streams import Stream
    from livectr.ingest.language.tables import Table


class Source(Protocol):
    """Source of records that reads in a background thread; all methods are called from one thread."""

    remarks: list[str]
    """Sentences on what of the log is left out; each was logged as a warning."""

    def topics(self) -> dict[str, list[int]]:
        """Topic → its partitions.

        Raises:
            ConnectError: the brokers cannot be reached.
            ConfigError: a declared topic does not exist.
        """

    def assign(
        self, positions: Mapping[TopicPartition, Position], files: Mapping[TopicPartition, Files] = NO_FILES
    ) -> None:
        """Set the partitions to read and their start positions; called before `start`.

        Args:
            positions: topic partition → position.
            files: what `files` has said of these positions.
        """

    def files(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Files]:
        """Files in which positions lie, so that a later source finds them when older files are gone."""

    def start(self) -> None:
        """Start the background thread."""

    def poll(self, max_wait_s: float, rows: int | None = None) -> list[Chunk]:
        """Return the chunks that were read, waiting up to `max_wait_s` seconds for the first.

        With `rows`, no more chunks are returned once they have so many rows. Errors of the background thread
        are raised here.
        """

    def at_end(self, topic: str, partition: int) -> bool:
        """Return true when `poll` has returned everything up to the partition's end.

        The end is the end at the start if the source reads until its end, else the current end.
        """

    def ask_ends(self) -> int:
        """Ask for the present ends of all partitions; returns the number of the question, from 1."""

    @property
    def answered(self) -> int:
        """Number of the last question that is answered.

        Since then `at_end` means ends that are no older than the question.
        """

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Ends that `at_end` compares with, as far as they are known."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop to read these partitions and resume all others (back-pressure).

        Records already read still arrive.
        """

    def lag(self) -> dict[TopicPartition, int]:
        """Records between the last that `poll` returned and the end of each partition."""

    def tell(self, held: Mapping[TopicPartition, int] | None = None) -> None:
        """Bring the gauges of speed and lag up to date.

        Args:
            held: records that `poll` has returned and nobody has used; they count as lag.
        """

    def bytes_read(self) -> dict[str, int]:
        """Topic → bytes read since `start`.

        Of files they are the bytes fetched for the columns in use (see `ingest.sources.part_file.Part`), of
        Kafka the keys and values of messages.
        """

    def close(self) -> None:
        """Stop reading and free all resources; a second call does nothing."""


def open_source(
    url: str,
    streams: Sequence[Stream | Table],
    *,
    until_end: bool,
    dead_letters: DeadLetters,
    max_queue_bytes: int = QUEUE_BYTES,
    **decoding: Any,
) -> Source:
    """Open the source of a URL.

    Args:
        url: `kafka://host:port[,host:port]` or `file:DIR`.
        streams: declarations of the topics to read.
        until_end: stop at the end that the logs have at the start; else follow them.
        dead_letters: receives bad records.
        max_queue_bytes: decoded bytes that may wait for `poll`.
        decoding: fields of `ingest.decode.decoders.Decoding`.

    Raises:
        ConfigError: the URL has another scheme.
    """
    # Imported here: only the source in use is loaded.
    from livectr.ingest.decode.decoders import Decoding

    options: dict[str, Any] = {
        "until_end": until_end,
        "dead_letters": dead_letters,
        "decoding": Decoding(**decoding),
        "max_queue_bytes": max_queue_bytes,
    }
    if url.startswith("kafka:"):
        from livectr.ingest.sources.kafka import KafkaSource

        return KafkaSource(url, streams, **options)
    if url.startswith("file:"):
        from livectr.ingest.sources.files import FileSource

        return FileSource(url, streams, **options)
    raise ConfigError(f"source {url!r} is neither kafka://HOST:PORT nor file:DIR")
