"""Records of a served log, in two passes to the end that the log has at the start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from livectr.analysis.served.report import Counts
from livectr.ingest.addresses import kafka_options, log_folder, no_answer, topic_address
from livectr.serving.options import check_served_log
from livectr.serving.served.record import Record, decode, request_of
from livectr.system.errors import ConfigError, DataError

_TIMEOUT_MS = 5_000
_POLL_MS = 500


class ServedReader:
    """Lines of a served log, as many in each pass.

    Args:
        url: `kafka://HOST:PORT/TOPIC` or `file:DIR`.

    Raises:
        ConfigError: the address has another form, or there is no such log.
        ConnectError: no broker answers.
    """

    def __init__(self, url: str) -> None:
        check_served_log(url)
        self.url = url
        self._log: _Folder | _Topic = _Folder(url) if url.startswith("file:") else _Topic(url)

    def lines(self) -> Iterator[bytes]:
        """Records of all servers; those of one server in the order in which they were served."""
        return self._log.lines()


def request_ids(reader: ServedReader) -> tuple[set[str], Counts]:
    """Ids of the requests of a log, and what it holds. Raises ConfigError: it holds no record."""
    ids: set[str] = set()
    records = broken = 0
    for line in reader.lines():
        try:
            ids.add(request_of(line))
            records += 1
        except DataError:
            broken += 1
    if not ids:
        raise ConfigError(f"{reader.url} holds no records yet; servers log requests that have a request_id.")
    return ids, Counts(len(ids), records - len(ids), broken, 0, 0)


def decoded(line: bytes) -> Record | None:
    """Record of a line; None: it is none."""
    try:
        return decode(line)
    except DataError:
        return None


def items_of(record: Record, column: str) -> list[str]:
    """Items of the candidates of a record, as texts.

    Raises:
        ConfigError: the candidates do not have the column of the item.
    """
    values = record.candidates.get(column)
    if values is None and column in record.context and len(record.pctr) == 1:
        values = [record.context[column]]
    if values is None and column in record.context:
        raise ConfigError(
            f"--item-column: {column!r} has one value for all {len(record.pctr)} candidates of "
            f"request {record.request_id!r}; they have {', '.join(record.candidates)}"
        )
    if values is None:
        known = ", ".join(record.candidates)
        raise ConfigError(
            f"--item-column: the candidates of request {record.request_id!r} have no column "
            f"{column!r}; they have {known}"
        )
    return [str(value) for value in values]


class _Folder:
    def __init__(self, url: str) -> None:
        folder = log_folder(url)
        self._ends: list[tuple[Path, int]] = [
            (path, path.stat().st_size) for path in sorted(folder.glob("*.jsonl"))
        ]
        if not self._ends:
            raise ConfigError(f"{folder} holds no served log: name the folder of a server's served_log")

    def lines(self) -> Iterator[bytes]:
        for path, end in self._ends:
            with path.open("rb") as file:
                for line in file:
                    if file.tell() > end:
                        break
                    if line.endswith(b"\n") and line != b"\n":
                        yield line


class _Topic:
    def __init__(self, url: str) -> None:
        from kafka import TopicPartition
        from kafka.errors import KafkaError

        self._url, self._topic = topic_address(url)
        consumer = self._connect()
        try:
            if self._topic not in consumer.topics():
                raise ConfigError(
                    f"there is no topic {self._topic} at {self._url}: name that of the server's served_log"
                )
            places = [TopicPartition(self._topic, n) for n in consumer.partitions_for_topic(self._topic)]
            self._ends: dict[Any, int] = consumer.end_offsets(places, timeout_ms=_TIMEOUT_MS)
        except KafkaError as error:
            raise no_answer(self._url) from error
        finally:
            consumer.close(autocommit=False)

    def lines(self) -> Iterator[bytes]:
        from kafka.errors import KafkaError

        consumer = self._connect()
        try:
            consumer.assign(list(self._ends))
            consumer.seek_to_beginning(*self._ends)
            while any(consumer.position(place) < end for place, end in self._ends.items()):
                polled = consumer.poll(timeout_ms=_POLL_MS)
                for message in itertools.chain.from_iterable(polled.values()):
                    place = next(p for p in self._ends if p.partition == message.partition)
                    if message.offset < self._ends[place]:
                        yield message.value
        except KafkaError as error:
            raise no_answer(self._url) from error
        finally:
            consumer.close(autocommit=False)

    def _connect(self) -> Any:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError

        try:
            return KafkaConsumer(
                **kafka_options(self._url),
                client_id="livectr-evaluate",
                group_id=None,
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                bootstrap_timeout_ms=_TIMEOUT_MS,
                metrics_enabled=False,
            )
        except KafkaError as error:
            raise no_answer(self._url) from error
