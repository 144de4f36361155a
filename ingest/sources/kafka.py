"""Kafka source: assigned partitions, explicit positions, no offsets committed to the broker.

Aborted transactions are skipped. Checksums are verified with the C implementation of crc32c: pure Python
would take ten times longer than everything else together.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnsupportedCodecError,
)

from livectr.ingest.addresses import kafka_options, no_answer, no_topic, registry_options
from livectr.ingest.chunks import BEGINNING, Position
from livectr.ingest.chunks import TopicPartition as Place
from livectr.ingest.dead_letters.letters import TOPIC, DeadLetters
from livectr.ingest.decode.decoders import Decoding
from livectr.ingest.decode.messages import MessageList, Messages
from livectr.ingest.decode.registered import RegisteredRows
from livectr.ingest.decode.registry import SchemaRegistry
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.sources.background import QUEUE_BYTES, BackgroundSource
from livectr.ingest.sources.kafka_batches import bound_batches
from livectr.ingest.sources.kafka_blocks import RecordBlock, use_blocks
from livectr.system.errors import ConfigError, InternalError, MismatchError, UserError

_CONNECT_TIMEOUT_MS = 5_000
_POLL_MS = 200
_PROBE_AFTER_S = 0.5
_PROBE_TIMEOUT_MS = 1_000
_MAX_BACKOFF_S = 5.0
_LOG_APPEND_TIME = 1
_NO_END = (1 << 63) - 1
_UNKNOWN_MS = 1 << 60
"""Append time of a message whose time is its producer's (CreateTime): it bounds nothing."""
_CODEC_PACKAGES = {"lz4": "lz4", "zstd": "zstandard", "snappy": "python-snappy"}

_log = logging.getLogger(__name__)


class KafkaSource(BackgroundSource):
    """Source that reads topics of a Kafka cluster, up to their end at the start or following them.

    When a broker goes away later, the source waits for it and continues where it stopped; nothing is lost.

    Args:
        url: `kafka://host:port[,host:port]`.
        streams: declarations of the topics.
        until_end: stop at the end that the topics have at the start.
        dead_letters: receives bad records.
        decoding: columns in use and limits.
        max_queue_bytes: decoded bytes that may wait for `poll`.

    Raises:
        ConnectError: no broker or no schema registry answers.
        ConfigError: crc32c is not installed, or fastavro for an address with a registry.
    """

    def __init__(
        self,
        url: str,
        streams: Sequence[Stream | Table],
        *,
        until_end: bool,
        dead_letters: DeadLetters,
        decoding: Decoding | None = None,
        max_queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        super().__init__(max_queue_bytes, dead_letters)
        decoding = decoding or Decoding()
        if importlib.util.find_spec("crc32c") is None:
            raise ConfigError("reading Kafka needs the checksum library: pip install crc32c")
        self._url = url
        self._until_end = until_end
        if (registry := registry_options(url)) is not None:
            client = SchemaRegistry(**registry, stopping=lambda: self._stopping)
            decoding = replace(decoding, registered=RegisteredRows(client))
            client.check()
        self._decoders = decoding.decoders(streams, dead_letters)
        bound_batches(decoding.limits.unpacked_bytes)
        self._tables = {stream.topic for stream in streams if isinstance(stream, Table)}
        self._ends: dict[Place, int] = {}
        self._rows, self._messages = (
            Counter[str](),
            Counter[str](),
        )  # by topic; an Arrow message has many rows
        self._not_fetched: frozenset[Place] = frozenset()
        self._silent_probes = 0  # probes without answer in a row
        self._consumer = _connect(url)
        use_blocks(self._consumer)

    def topics(self) -> dict[str, list[int]]:
        """Topic → its partitions, ascending.

        Raises:
            ConnectError: a topic does not exist, or the brokers do not answer.
        """
        try:
            existing = self._consumer.topics()
            missing = [topic for topic in self._decoders if topic not in existing]
            if missing:
                others = (topic for topic in existing if not topic.startswith(TOPIC))
                raise no_topic(missing, self._url, others)
            return {topic: sorted(self._consumer.partitions_for_topic(topic)) for topic in self._decoders}
        except KafkaError as error:
            raise no_answer(self._url) from error

    def start(self) -> None:
        """Seek to the positions and start to read.

        Raises:
            MismatchError: a position is beyond the end of its partition.
        """
        places = {place: TopicPartition(*place) for place in self._positions}
        try:
            begins = self._consumer.beginning_offsets(list(places.values()), timeout_ms=_CONNECT_TIMEOUT_MS)
            ends = self._consumer.end_offsets(list(places.values()), timeout_ms=_CONNECT_TIMEOUT_MS)
        except KafkaError as error:
            raise no_answer(self._url) from error
        self._letters.resume({place: at for place, at in self._positions.items() if at > BEGINNING})
        self._consumer.assign(list(places.values()))
        for place, partition in places.items():
            at, begin, end = self._positions[place], begins[partition], ends[partition]
            if at > Position(end, 0):
                raise MismatchError(
                    f"{place[0]} partition {place[1]} ends at offset {end}, but the checkpoint resumes at "
                    f"{at.offset}; it was made from another log"
                )
            if at.offset < begin:
                if at > BEGINNING:
                    _log.warning("%s: the broker has deleted offsets %d to %d", place, at.offset, begin - 1)
                at = self._positions[place] = Position(begin, 0)
            self._ends[place] = end
            self._consumer.seek(partition, at.offset)
            self._mark(place, end - at.offset, at.offset >= end)
        super().start()

    def end_offsets(self) -> dict[Place, int]:
        """End offsets of the partitions, as far as they are known."""
        return dict(self._ends)

    def close(self) -> None:
        """Stop the thread, and close the connections; no offset is committed."""
        super().close()
        self._consumer.close(autocommit=False)

    def _run(self) -> None:
        left = set(self._positions)
        backoff_s = 0.1
        heard_s = time.monotonic()
        while left and not self._stopping:
            self._pause(left)
            try:
                polled = self._consumer.poll(timeout_ms=_POLL_MS)
                backoff_s = 0.1
                if polled:
                    self._silent_probes, heard_s = 0, time.monotonic()
                elif time.monotonic() - heard_s > _PROBE_AFTER_S:
                    self._probe(left)
                    heard_s = time.monotonic()
            except KafkaError as error:
                if not getattr(error, "retriable", False):
                    raise _explained(error) from error
                _log.warning("reading %s failed (%s); next try in %.1f s", self._url, error, backoff_s)
                self._rest(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
                continue
            for partition, records in polled.items():
                self._queue_records((partition.topic, partition.partition), records)
            if self._question > self._answered:
                self._tell_ends(left)
            for place in list(left):
                at, end = self._progress(place)
                if at >= end and self._until_end:
                    left.discard(place)
                if at >= end:
                    self._mark(place, 0, self._until_end or not self._silent_probes)

    def _probe(self, left: set[Place]) -> None:
        """Ask the brokers for the ends after a silence.

        Without an answer no partition counts as read to its end.

        kafka-python reconnects by itself with exponential back-off and continues where it stopped.
        """
        partitions = [TopicPartition(*place) for place in left]
        try:
            ends = self._consumer.end_offsets(partitions, timeout_ms=_PROBE_TIMEOUT_MS)
        except KafkaTimeoutError:
            self._silent_probes += 1
            if self._silent_probes == 2:
                _log.warning("%s does not answer; waiting for it", self._url)
            return
        if self._silent_probes >= 2:
            _log.warning("%s answers again", self._url)
        self._silent_probes = 0
        if not self._until_end:
            self._ends.update({(tp.topic, tp.partition): end for tp, end in ends.items()})

    def _tell_ends(self, left: set[Place]) -> None:
        """Answer a question for the ends, unless the brokers do not."""
        question = self._question
        try:
            ends = self._consumer.end_offsets(
                [TopicPartition(*place) for place in left], timeout_ms=_PROBE_TIMEOUT_MS
            )
        except KafkaError as error:
            if not getattr(error, "retriable", False):
                raise _explained(error) from error
            return  # the next turn asks again, and `_probe` warns
        for place in left:
            end = ends[TopicPartition(*place)]
            self._ends[place] = max(self._ends[place], end)
            at, _ = self._progress(place)
            self._mark(place, self._behind_of(place[0], end - at), at >= end)
        self._answer(question)

    def _queue_records(self, place: Place, records: Sequence[Any]) -> None:
        """Decode and queue consecutive messages of a partition, up to the end at which reading stops."""
        stop = self._ends[place] if self._until_end else _NO_END
        first = self._positions[place]
        self._fetched(place[0], sum(map(_payload_bytes, records)))
        messages: Messages
        if all(isinstance(record.value, RecordBlock) for record in records):
            block = RecordBlock.joined([record.value for record in records], _UNKNOWN_MS)
            block = block.between(first.offset, stop)
            messages = replace(block, append_ms=block.times_ms) if place[0] in self._tables else block
        else:  # an unusual batch among them
            messages = _one_by_one(records, first.offset, stop, table=place[0] in self._tables)
        if len(messages.offsets):
            chunk = self._decoders[place[0]].messages(place[1], messages, start=first)
            at, end = self._progress(place)
            self._rows[place[0]] += len(chunk)
            self._messages[place[0]] += len(messages.offsets)
            self._put(chunk, self._behind_of(place[0], end - chunk.next.offset), at >= end)

    def _behind_of(self, topic: str, messages: int) -> int:
        """Records in so many messages: an Arrow message has many, as many as those before on average."""
        read = self._messages[topic]
        return max(0, round(messages * max(1.0, self._rows[topic] / read)) if read else messages)

    def _progress(self, place: Place) -> tuple[int, int]:
        """(next offset, end) of a partition.

        The next offset may lie after records that are not delivered (aborted, markers).
        """
        partition = TopicPartition(*place)
        if not self._until_end:
            end = self._consumer.highwater(partition)
            if end is not None:
                self._ends[place] = max(end, self._ends[place])
        at = self._consumer.position(partition, timeout_ms=0)
        return (self._positions[place].offset if at is None else at), self._ends[place]

    def _pause(self, left: set[Place]) -> None:
        """Pause fetching of partitions that are paused by the caller or have ended."""
        paused = frozenset(self._paused | (set(self._positions) - left)) & frozenset(self._positions)
        if paused != self._not_fetched:
            self._consumer.pause(*(TopicPartition(*place) for place in paused - self._not_fetched))
            self._consumer.resume(*(TopicPartition(*place) for place in self._not_fetched - paused))
            self._not_fetched = paused


def _payload_bytes(record: Any) -> int:
    """Bytes of keys and values."""
    if isinstance(record.value, RecordBlock):
        return record.value.spans.payload_bytes
    return len(record.value or b"") + len(record.key or b"")


def first_offsets(url: str, places: Iterable[Place]) -> dict[Place, int]:
    """Topic partition → first offset that the broker has kept.

    Args:
        url: `kafka://host:port[,host:port]`.
        places: topic partitions.

    Raises:
        ConnectError: no broker answers, or it has no such partition.
    """
    partitions = [TopicPartition(*place) for place in places]
    with closing(_connect(url)) as consumer:
        try:
            found = consumer.beginning_offsets(partitions, timeout_ms=_CONNECT_TIMEOUT_MS)
        except KafkaError as error:
            raise no_answer(url) from error
    return {(at.topic, at.partition): offset for at, offset in found.items()}


def _one_by_one(records: Sequence[Any], first: int, stop: int, *, table: bool) -> MessageList:
    """Records from offset `first` to before `stop`, of which some are blocks.

    Of a table, the times are the producers' where the broker sets none.
    """
    found: list[tuple[int, bytes | None, bytes | None, int]] = []
    for record in records:
        if isinstance(record.value, RecordBlock):
            block = record.value
            times = block.times_ms if table else block.append_ms
            append = [_UNKNOWN_MS] * block.rows if times is None else times.tolist()
            columns = block.spans.offsets.tolist(), block.values(), block.keys(), append
            found += zip(*columns, strict=True)
        else:
            known = table or record.timestamp_type == _LOG_APPEND_TIME
            append_ms = record.timestamp if known else _UNKNOWN_MS
            found.append((record.offset, record.value, record.key, append_ms))
    found = [entry for entry in found if first <= entry[0] < stop]
    appended = np.array([entry[3] for entry in found], np.int64)
    return MessageList(
        np.array([entry[0] for entry in found], np.int64),
        [entry[1] for entry in found],
        [entry[2] for entry in found],
        appended if (appended != _UNKNOWN_MS).any() else None,
    )


def _connect(url: str) -> KafkaConsumer:
    try:
        return KafkaConsumer(
            **kafka_options(url),
            client_id="livectr-ingest",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            isolation_level="read_committed",
            check_crcs=True,
            bootstrap_timeout_ms=_CONNECT_TIMEOUT_MS,
            reconnect_backoff_max_ms=int(_MAX_BACKOFF_S * 1000),
            # Large fetches amortize the cost of a request over many messages.
            fetch_max_bytes=32 << 20,
            max_partition_fetch_bytes=4 << 20,
            fetch_max_wait_ms=100,
            max_poll_records=16_384,  # of blocks; `kafka_blocks` bounds their bytes
            metrics_enabled=False,
        )
    except KafkaError as error:
        raise no_answer(url) from error


def _explained(error: KafkaError) -> Exception:
    """Exception for a permanent failure of the log, in a user's words."""
    if isinstance(error, OffsetOutOfRangeError | LogTruncationError):
        return UserError(
            f"the log no longer has the records to read next ({error}): they were deleted before this"
        )
    if isinstance(error, UnsupportedCodecError):
        for codec, package in _CODEC_PACKAGES.items():
            if codec in str(error):
                return ConfigError(f"messages are compressed with {codec}: pip install {package}")
        return ConfigError(f"messages are compressed in an unknown way: {error}")
    return InternalError(f"reading Kafka failed: {error}")
