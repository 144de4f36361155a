"""Places of a served log: a folder of JSON lines, or a topic of Kafka.

Only the writer's thread uses a sink. A sink tells the outcome of each record: at once, or from a thread of
Kafka's client.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from livectr.ingest.addresses import (
    MOST_IN_FLIGHT,
    connect_admin,
    kafka_options,
    log_folder,
    topic_address,
)
from livectr.serving.canary import SIDE
from livectr.system.disk import write_all
from livectr.system.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from kafka import KafkaProducer

REQUEST_S = 5.0
"""Time limit of a broker's answer; twice that for the delivery of a record."""
LARGEST_BYTES = 64 << 20
"""Longest record that the client sends; the topic's own limit is the broker's, 1 MiB if nobody raised it."""


class Outcome(StrEnum):
    """Outcome of a sampled request; all but WRITTEN label a metric of dropped records."""

    WRITTEN = "written"
    NO_REQUEST_ID = "no_request_id"
    QUEUE_FULL = "queue_full"
    TOO_LARGE = "too_large"
    SINK = "sink"
    CLOSING = "closing"


Tell = Callable[[Outcome], None]
"""Takes the outcome of a record; later calls do nothing."""


class Sink(Protocol):
    """Place that takes records."""

    def write(self, key: str, line: bytes, tell: Tell) -> None:
        """Write a record, or begin to.

        Raises:
            ConnectError: the place is away; the record may be written later.
            OSError: the record cannot be written.
        """
        ...

    def close(self) -> None:
        """Let go of the place; records that are still under way have no outcome."""
        ...


def open_sink(url: str) -> Sink:
    """Sink of `kafka://HOST:PORT/TOPIC` or `file:DIR`; a broker that is away is no mistake.

    Raises:
        ConfigError: the folder cannot be written, or Kafka's client is not installed.
    """
    return FolderSink(log_folder(url)) if url.startswith("file:") else TopicSink(*topic_address(url))


class FolderSink:
    """JSON lines in FOLDER/<host>-<process>-<side>.jsonl.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{socket.gethostname()}-{os.getpid()}-{SIDE.get()}.jsonl"
            self._file: BinaryIO = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"what was served cannot be logged to {folder}: {error.strerror}") from error
        self._torn = False

    def write(self, key: str, line: bytes, tell: Tell) -> None:
        """Append a line, after a line end where a torn line stands; a record's outcome is told at once."""
        if self._torn:
            write_all(self._file, b"\n")
        self._torn = True
        write_all(self._file, line + b"\n")
        self._torn = False
        tell(Outcome.WRITTEN)

    def close(self) -> None:
        """Close the file; all written records are in it."""
        self._file.close()


class TopicSink:
    """Messages of a topic, with the request id as key; the topic is created if it is missing.

    Raises:
        ConfigError: Kafka's client is not installed.
    """

    def __init__(self, brokers: str, topic: str) -> None:
        if importlib.util.find_spec("kafka") is None:
            raise ConfigError(
                "a served log in a topic needs Kafka's client: pip install kafka-python, or log to file:DIR"
            )
        self._brokers, self._topic = brokers, topic
        self._producer: KafkaProducer | None = None

    def write(self, key: str, line: bytes, tell: Tell) -> None:
        """Give a record to Kafka's client, which tells the outcome. Raises ConnectError."""
        from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

        too_large = MessageSizeTooLargeError, RecordListTooLargeError

        def failed(error: BaseException) -> None:
            tell(Outcome.TOO_LARGE if isinstance(error, too_large) else Outcome.SINK)

        producer = self._producer = self._producer or self._connect()
        try:
            sent = producer.send(self._topic, key=key.encode("utf-8", "replace"), value=line)
        except KafkaError as error:
            failed(error)
            return
        sent.add_callback(lambda _: tell(Outcome.WRITTEN))
        sent.add_errback(failed)

    def close(self) -> None:
        """Close the client at once, and forget records that it has not sent."""
        from kafka.errors import KafkaError

        if self._producer is not None:
            with suppress(KafkaError):  # records under way
                self._producer.close(timeout=0)

    def _connect(self) -> KafkaProducer:
        """Create the topic if it is missing, and connect. Raises ConnectError."""
        from kafka import KafkaProducer
        from kafka.errors import KafkaError, TopicAlreadyExistsError

        try:
            with connect_admin(self._brokers, REQUEST_S) as admin:
                if self._topic not in admin.list_topics():
                    with suppress(TopicAlreadyExistsError):  # another server was first
                        admin.create_topics({self._topic: {"num_partitions": 1}}, wait_for_metadata=True)
            return KafkaProducer(
                **kafka_options(self._brokers),
                bootstrap_timeout_ms=int(REQUEST_S * 1000),
                client_id="livectr-served",
                acks=1,
                enable_idempotence=False,
                max_in_flight_requests_per_connection=MOST_IN_FLIGHT,
                request_timeout_ms=int(REQUEST_S * 1000),
                delivery_timeout_ms=int(2 * REQUEST_S * 1000),
                max_block_ms=int(REQUEST_S * 1000),
                max_request_size=LARGEST_BYTES,
                reconnect_backoff_max_ms=2000,
                linger_ms=20,
                compression_type="gzip",
            )
        except KafkaError as error:
            raise ConnectError(
                f"topic {self._topic} of {self._brokers} cannot be written: {error}"
            ) from error
