"""Targets of the simulator and of `livectr logs replay`: equal partitions in a folder of files or in Kafka.

file:DIR             DIR/<topic>/<partition>-<part>.jsonl | .arrow
kafka://host:port    one message per JSON event, or one message per Arrow IPC batch
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from livectr.ingest.sources.part_file import SUFFIXES
from livectr.system.disk import write_all, writing
from livectr.system.errors import ConfigError

PART_BYTES = 64 << 20  # size at which a partition continues in a new file
LINGER_MS = 5
TOPIC_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")  # Kafka's rule; a folder's name as well
MAX_REQUEST_BYTES = 16 << 20  # an Arrow batch is one message; the broker's limit has to allow it as well

FOR_EVER_MS = (1 << 31) - 1


class Sink(Protocol):
    """Target of events. `flush` returns when all earlier events are readable by others."""

    def write(
        self, topic: str, partition: NDArray[np.int32], keys: Sequence[bytes | None], values: list[bytes]
    ) -> None:
        """Write a JSON event per value, with its partition and message key."""

    def write_batch(self, topic: str, partition: int, batch: pa.RecordBatch) -> None:
        """Write many events at once, as Arrow IPC."""

    @property
    def records_per_batch(self) -> float | None:
        """Mean number of records that went to a broker together; None: there is no broker."""

    def flush(self) -> None:
        """Return when all earlier events are readable by others."""

    def close(self) -> None:
        """Write what is left, and close files or connections."""


def open_sink(
    url: str, topics: dict[str, int], *, tables: tuple[str, ...] = (), live: tuple[str, ...] = ()
) -> Sink:
    """Open the target of a URL, and create missing topics.

    Args:
        url: kafka://HOST:PORT or file:DIR.
        topics: name → partitions.
        tables: topics that are compacted.
        live: topics of JSON events that readers may already follow; their files are created at once.

    Raises:
        ConfigError: another scheme, an impossible name of a topic, or another number of partitions.
        ConnectError: no broker answers.
    """
    for topic in topics:
        _check_name(topic)
    if url.startswith("kafka://"):
        return KafkaSink(url, topics, tables)
    if url.startswith("file:"):
        return FileSink(Path(url.removeprefix("file:")), topics, live)
    raise ConfigError(f"the target {url!r} is neither kafka://HOST:PORT nor file:DIR")


def holds(url: str, topic: str) -> str | None:
    """Content of a topic in words ("12 messages", "3 log files"); None: it is empty or missing.

    Raises:
        ConfigError: an impossible name of a topic.
        ConnectError: no broker answers.
    """
    _check_name(topic)
    if url.startswith("file:"):
        folder = Path(url.removeprefix("file:")) / topic
        files = sum(path.suffix in SUFFIXES for path in folder.iterdir()) if folder.is_dir() else 0
        return f"{files:,} log files" if files else None
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    from livectr.ingest.addresses import kafka_options, no_answer

    try:
        consumer = KafkaConsumer(
            **kafka_options(url),
            bootstrap_timeout_ms=5000,
            allow_auto_create_topics=False,
            client_id="livectr-writer",
        )
    except KafkaError as error:
        raise no_answer(url) from error
    try:
        if topic not in consumer.topics():
            return None
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        ends, begins = consumer.end_offsets(places), consumer.beginning_offsets(places)
        records = sum(ends[place] - begins[place] for place in places)
    except KafkaError as error:
        raise no_answer(url) from error
    finally:
        consumer.close(autocommit=False)
    return f"{records:,} messages" if records else None


def _check_name(topic: str) -> None:
    if not TOPIC_NAME.fullmatch(topic):
        raise ConfigError(f"topic {topic!r}: use letters, digits, '.', '_' and '-', and begin with no '.'")


def move_parts(source: Path, target: Path) -> None:
    """Move the files of a topic's folder into another one, behind the parts that it holds; all are whole."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        path.rename(_next_part(target, int(path.name[:5]), path.suffix))


def _next_part(folder: Path, partition: int, suffix: str) -> Path:
    # Readers take a partition's files in name order, so a new part has to sort after all others.
    numbers = [int(m[1]) for p in folder.glob(f"{partition:05d}-*") if (m := _PART.match(p.name))]
    return folder / f"{partition:05d}-{max(numbers, default=-1) + 1:06d}{suffix}"


class FileSink:
    """Appends to a growing file per partition; readers see complete lines only."""

    def __init__(self, folder: Path, topics: dict[str, int], live: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._open: dict[tuple[str, int], BinaryIO] = {}
        for topic in topics:
            try:
                (folder / topic).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"the folder {folder / topic} cannot be made: {error.strerror}") from None
            for partition in range(topics[topic] if topic in live else 0):
                self._part(topic, partition)

    def _part(self, topic: str, partition: int) -> BinaryIO:
        file: BinaryIO = _next_part(self._folder / topic, partition, ".jsonl").open("xb", buffering=0)
        self._open[topic, partition] = file
        return file

    def write(
        self, topic: str, partition: NDArray[np.int32], keys: Sequence[bytes | None], values: list[bytes]
    ) -> None:
        """Append a line for each event; a full file is followed by the next part."""
        lines: dict[int, list[bytes]] = {}
        for p, value in zip(partition.tolist(), values, strict=True):
            lines.setdefault(p, []).append(value)
        for p, some in lines.items():
            file = self._open.get((topic, p))
            if file is None or file.tell() > PART_BYTES:
                if file is not None:
                    file.close()
                file = self._part(topic, p)
            with writing("the log", self._folder):
                write_all(file, b"\n".join(some) + b"\n")

    def write_batch(self, topic: str, partition: int, batch: pa.RecordBatch) -> None:
        """Write an Arrow file, which readers see when it is complete."""
        path = _next_part(self._folder / topic, partition, ".arrow")
        unfinished = path.with_suffix(".tmp")
        with (
            writing("the log", self._folder),
            pa.OSFile(str(unfinished), "wb") as file,
            pa.ipc.new_file(file, batch.schema) as writer,
        ):
            writer.write_batch(batch)
        unfinished.rename(path)

    @property
    def records_per_batch(self) -> None:
        """None: there is no broker."""
        return None

    def flush(self) -> None:
        """Nothing waits: files are not buffered, so that events that do not fit find the disk full."""

    def close(self) -> None:
        """Close the files, of which all lines are complete."""
        for file in self._open.values():
            file.close()
        self._open.clear()


_PART = re.compile(r"\d+-(\d+)\.")


class KafkaSink:
    """Idempotent producer: acknowledged records are there once, in order. Waits while the broker is away."""

    def __init__(self, url: str, topics: dict[str, int], tables: tuple[str, ...]) -> None:
        # Here, for a folder of files is written without Kafka's package.
        from livectr.ingest.addresses import connect_admin, kafka_options
        from livectr.local.kafka import create_topics
        from livectr.simulator.producer import BatchProducer

        create_topics(url, topics, compacted=tables)
        with connect_admin(url) as admin:
            for described in admin.describe_topics(list(topics)):
                name, actual = described["name"], len(described["partitions"])
                if actual != topics[name]:
                    raise ConfigError(
                        f"topic {name!r} has {actual} partitions, not {topics[name]}; "
                        f"say --partitions {actual}"
                    )
        options = {
            **kafka_options(url),
            "linger_ms": LINGER_MS,
            "max_block_ms": FOR_EVER_MS,
            "delivery_timeout_ms": FOR_EVER_MS,
            "client_id": "livectr-writer",
        }
        self._producer = BatchProducer(options, MAX_REQUEST_BYTES)

    def write(
        self, topic: str, partition: NDArray[np.int32], keys: Sequence[bytes | None], values: list[bytes]
    ) -> None:
        """Send a message for each event. Waits while the broker is away."""
        self._producer.write(topic, partition, keys, values)

    def write_batch(self, topic: str, partition: int, batch: pa.RecordBatch) -> None:
        """Send an Arrow IPC stream of all events as one message without a key."""
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        self._producer.write(topic, np.array([partition], np.int32), [None], [stream.getvalue()])

    @property
    def records_per_batch(self) -> float | None:
        """Mean number of records of a batch so far; None: nothing was sent."""
        return self._producer.records / self._producer.batches if self._producer.batches else None

    def flush(self) -> None:
        """Return when the brokers have all earlier messages."""
        self._producer.flush()

    def close(self) -> None:
        """Send what is left, and close the connections."""
        self._producer.close()
