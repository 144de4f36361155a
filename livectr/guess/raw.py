"""Samples of raw logs, impressions or clicks: of a file, or of a Kafka topic with its message keys.

A topic is read from its beginning, without a consumer group; nothing is committed. Its values stay as they
are, since the live topic will have them so, too.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.facts import Sample, joined, read_sample
from livectr.guess.leaks import first_rows
from livectr.ingest.addresses import kafka_options, no_answer, no_topic, topic_address
from livectr.logs.account import Account
from livectr.logs.arrow_rows import is_plain, plain
from livectr.logs.json_rows import batch_of, flattened, json_lines
from livectr.logs.values import STRAY, Form, form_of_column
from livectr.system.errors import ConfigError, ConnectError

TOPIC_ROWS = 50_000
"""Messages of a topic that are looked at, over all partitions."""
LEAST_LATER = 500
"""Messages that must be left of a topic where it is not read from its beginning."""
QUIET_S = 10.0
"""Seconds without a message after which a broker counts as away."""
REGISTERED = 0
"""First byte of a message of a schema registry."""


@dataclass(frozen=True)
class RawLog:
    """Sample of a raw log.

    Args:
        sample: n rows.
        brokers: address of the brokers; None: a file.
        partitions: of the topic; 1 for a file.
        partition: int32[n], of each row.
        keys: n message keys as texts, null where a message has none; None: a file.
        left_out: column → why it cannot be declared.
    """

    sample: Sample
    brokers: str | None
    partitions: int
    partition: npt.NDArray[np.int32]
    keys: pa.Array | None
    left_out: dict[str, str]

    @property
    def table(self) -> pa.Table:
        """Rows of the sample."""
        return self.sample.table

    def retyped(self, names: Iterable[str]) -> RawLog:
        """The log of a file, with these columns as texts: a column of whole numbers is still read as such."""
        table = self.table
        for name in names:
            place = table.column_names.index(name)
            table = table.set_column(place, name, table.column(name).cast(pa.string()))
        return replace(self, sample=replace(self.sample, table=table))

    def with_whole(self, name: str) -> RawLog:
        """The log, with a column of doubles as whole numbers if it holds no others."""
        column = self.table.column(name)
        if not pa.types.is_floating(column.type) or not form_of_column(column, is_id=True).kind:
            return self
        numbers = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column).cast(pa.int64())
        table = self.table.set_column(self.table.column_names.index(name), name, numbers)
        forms = {**self.sample.forms, name: replace(self.sample.forms[name], kind="int64")}
        return replace(self, sample=replace(self.sample, table=table, forms=forms))

    def without_repeats(self) -> RawLog:
        """The log without rows that are equal to one before them."""
        return self.rows(first_rows(self.table.columns, self.table.num_rows))

    def rows(self, chosen: npt.NDArray[np.bool_]) -> RawLog:
        """The log with those rows of which bool[n] is true."""
        if chosen.all():
            return self
        places = pa.array(np.flatnonzero(chosen))
        keys = None if self.keys is None else self.keys.take(places)
        sample = replace(self.sample, table=self.table.take(places))
        return replace(self, sample=sample, partition=self.partition[chosen], keys=keys)


def raw_logs(shown: str, clicked: str) -> tuple[RawLog, RawLog]:
    """Samples of two logs: files, or topics of the same brokers, of about the same time.

    Args:
        shown: impressions, FILE or kafka://HOST:PORT/TOPIC.
        clicked: clicks, alike.

    Raises:
        ConfigError: a log cannot be read, or has no row.
        ConnectError: no broker answers, or there is no such topic.
    """
    if not shown.startswith("kafka:"):
        return _file(Path(shown)), _file(Path(clicked))
    brokers, topics = topic_address(shown)[0], (topic_address(shown)[1], topic_address(clicked)[1])
    with _consumer(brokers) as consumer:
        places = [_places(consumer, brokers, topic) for topic in topics]
        # One topic may be kept for longer than the other: both are read from where the later one begins.
        since_ms = max(
            _first_ms(brokers, consumer, some, topic) for some, topic in zip(places, topics, strict=True)
        )
        first, second = (
            _topic(brokers, topic, *_messages(brokers, consumer, some, since_ms))
            for some, topic in zip(places, topics, strict=True)
        )
    return first, second


def _file(path: Path) -> RawLog:
    sample = read_sample(path)
    return RawLog(sample, None, 1, np.zeros(sample.table.num_rows, np.int32), None, {})


@contextmanager
def _consumer(brokers: str) -> Iterator[Any]:
    """Consumer without a group."""
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    try:
        consumer = KafkaConsumer(
            **kafka_options(brokers),
            bootstrap_timeout_ms=5000,
            allow_auto_create_topics=False,
            enable_auto_commit=False,
            client_id="livectr-init",
        )
    except KafkaError as error:
        raise no_answer(brokers) from error
    try:
        yield consumer
    except KafkaError as error:
        raise no_answer(brokers) from error
    finally:
        consumer.close(autocommit=False)


def _places(consumer: Any, brokers: str, topic: str) -> list[Any]:
    """Partitions of a topic. Raises ConnectError if there is none."""
    from kafka import TopicPartition

    known = consumer.topics()
    if topic not in known:
        raise no_topic([topic], brokers, known)
    return [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]


def _first_ms(brokers: str, consumer: Any, places: list[Any], topic: str) -> int:
    """Time at which the topic begins, as its messages say. Raises ConfigError for an empty topic."""
    begins = consumer.beginning_offsets(places)
    found = [message.ms for message in _read(brokers, begins, dict.fromkeys(places, 1))]
    if not found:
        raise ConfigError(f"topic {topic} has no message yet; send some, and look again.")
    return min(found)


@dataclass
class _Message:
    partition: int
    key: bytes | None
    value: bytes
    ms: int


def _messages(
    brokers: str, consumer: Any, places: list[Any], since_ms: int
) -> tuple[list[_Message], int, bool]:
    """Some messages of each partition, the number of partitions, and True if these are all.

    A topic that is larger than the sample is read from a time on.
    """
    begins, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    most = -(-TOPIC_ROWS // len(places))
    whole = all(ends[place] - begins[place] <= most for place in places)
    if not whole:
        found = consumer.offsets_for_times(dict.fromkeys(places, since_ms))
        later = {place: ends[place] if at is None else at.offset for place, at in found.items()}
        # A replayed log has the times of its replay, which say little.
        if sum(ends[place] - later[place] for place in places) >= LEAST_LATER:
            begins = later
    return list(_read(brokers, begins, dict.fromkeys(places, most))), len(places), whole


def _read(brokers: str, begins: dict[Any, int], most: dict[Any, int]) -> Iterator[_Message]:
    """Messages of partitions from offsets on, until each has given so many or is at its end.

    Each reading has a consumer of its own: one that seeks back in a paused partition may get nothing more.
    """
    with _consumer(brokers) as consumer:
        ends, left = consumer.end_offsets(list(begins)), dict(most)
        places = {place for place in begins if ends[place] > begins[place]}
        consumer.assign(places)
        for place in places:
            consumer.seek(place, begins[place])
        heard = time.monotonic()
        while places:
            polled = consumer.poll(timeout_ms=500)
            if polled:
                heard = time.monotonic()
            elif time.monotonic() - heard > QUIET_S:
                raise ConnectError(
                    "the brokers send no messages; are they busy, or is a partition without a leader?"
                )
            for place, records in polled.items():
                for record in records[: max(0, left[place])]:
                    yield _Message(place.partition, record.key, record.value or b"", record.timestamp)
                left[place] -= len(records)
            for place in list(places):
                if left[place] <= 0 or consumer.position(place) >= ends[place]:
                    places.discard(place)
                    consumer.pause(place)


def _topic(brokers: str, topic: str, messages: list[_Message], partitions: int, whole: bool) -> RawLog:
    odd = sum(message.value[:1] == bytes([REGISTERED]) for message in messages)
    if odd > STRAY * len(messages):
        raise ConfigError(
            f"topic {topic}: {odd:,} of {len(messages):,} messages are Avro or Protobuf of a schema "
            "registry, whose schemas name the columns; write the pipeline file by hand (docs/pipeline.md)."
        )
    account = Account(Path(topic), unit="message")
    found = _rows(messages, account)
    table = joined(found.batches)
    if table is None:
        raise ConfigError(f"no message of topic {topic} is a row ({'; '.join(account.first)}).")
    account.kept = table.num_rows
    account.judge()
    keys = [messages[place].key for place in found.places]
    texts = pa.array([None if key is None else key.decode(errors="replace") for key in keys], pa.string())
    forms = dict.fromkeys(table.column_names, Form(""))
    sample = Sample(topic, table, forms, paths=found.paths, whole=whole)
    partition = np.array([messages[place].partition for place in found.places], np.int32)
    return RawLog(sample, brokers, partitions, partition, texts, found.left_out)


@dataclass
class _Found:
    """Rows of messages.

    Attributes:
        batches: of the rows.
        places: message of each row.
        paths: column → its path in an object.
        left_out: column → why it cannot be declared.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def _rows(messages: list[_Message], account: Account) -> _Found:
    found = _Found()
    texts = [number for number, message in enumerate(messages) if message.value.lstrip()[:1] in (b"{", b"[")]
    # Line ends inside of a JSON text are blanks.
    content = b"\n".join(messages[number].value.replace(b"\n", b" ") for number in texts)
    rows: list[dict[str, Any]] = []
    for line, _, row in json_lines(io.BytesIO(content), account):
        try:
            rows.append(flattened(row, account.paths))
        except ValueError as error:
            raise ConfigError(f"topic {account.path}: {error}") from None
        _add_paths(row, "", "", False, found)
        found.places.append(texts[line - 1])
    _leave_mixed(rows, found)
    if rows:
        names = dict.fromkeys(name for row in rows for name in row)
        for name in names:
            _leave_strays(rows, name)
        batch = batch_of(rows, names)
        for name in batch.schema.names:
            if pa.types.is_string(batch.column(name).type) and not all(
                isinstance(row.get(name), str | None) for row in rows
            ):
                found.left_out[name] = "has values of several types, or whole numbers beyond int64"
        found.batches.append(batch)
    for number in sorted({*range(len(messages))} - {*texts}):
        try:
            with pa.ipc.open_stream(messages[number].value) as stream:
                batches = [batch for batch in stream if batch.num_rows]
        except pa.ArrowException:
            account.set_aside(number + 1, "message", "neither JSON nor Arrow IPC", "")
            continue
        for batch in batches:
            columns = [plain(column) for column in batch.columns]
            found.batches.append(pa.RecordBatch.from_arrays(columns, batch.schema.names))
            found.places += [number] * batch.num_rows
    for batch in found.batches:
        for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
            if not is_plain(kind) and not pa.types.is_null(kind):
                found.left_out[name] = f"holds {kind}, which is no number, text or list"
    return found


def _leave_mixed(rows: list[dict[str, Any]], found: _Found) -> None:
    """Choose between a plain column and the values of objects where a log has both under one name.

    The few of the rarer kind are dead letters in training. Where both are many, neither can be declared.
    """
    inside: dict[str, list[str]] = {}
    for name, path in found.paths.items():
        inside.setdefault(path.partition(".")[0], []).append(name)
    for origin, names in inside.items():
        plain = sum(row.get(origin) is not None for row in rows)
        objects = sum(any(row.get(name) is not None for name in names) for row in rows)
        if not plain:
            continue
        gone = [
            *([origin] if plain <= STRAY * len(rows) else ()),
            *(names if objects <= STRAY * len(rows) else ()),
        ]
        if not gone:
            why = f"{origin} is an object in {objects:,} records, and a plain value in {plain:,}"
            found.left_out |= dict.fromkeys((origin, *names), why)
        for name in gone:
            found.paths.pop(name, None)
            for row in rows:
                row.pop(name, None)


def _leave_strays(rows: list[dict[str, Any]], name: str) -> None:
    """Take the few values of another type out of a column: their records are dead letters in training."""
    kinds = Counter(_kind(row[name]) for row in rows if row.get(name) is not None)
    if len(kinds) < 2:
        return
    most, count = kinds.most_common(1)[0]
    if kinds.total() - count <= STRAY * kinds.total():
        for row in rows:
            if row.get(name) is not None and _kind(row[name]) is not most:
                row[name] = None


def _kind(value: Any) -> type:
    """Type of a JSON value; all numbers have one."""
    return float if type(value) is int else type(value)


def _add_paths(row: dict[str, Any], column: str, path: str, dotted: bool, found: _Found) -> None:
    """Note the paths of an object's values, as json_fields say them."""
    for name, value in row.items():
        unclear = dotted or "." in name
        if isinstance(value, dict):
            _add_paths(value, f"{column}{name}_", f"{path}{name}.", unclear, found)
        elif path:
            found.paths[column + name] = path + name
            if unclear:
                found.left_out[column + name] = "is in an object, and a name on its path has a dot"
