"""Records of a served log, in two passes to the end that the log has at the start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from livectr.ingest.addresses import kafka_options, log_folder, no_answer, topic_address
from livectr.serving.options import check_served_log
from livectr.system.errors import ConfigError

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
        self._log: _Folder | _Topic = _Folder(url) if url.startswith("file:") else _Topic(url)

    def lines(self) -> Iterator[bytes]:
        """Records of all servers; those of one server in the order in which they were served."""
        return self._log.lines()


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
