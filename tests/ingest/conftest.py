"""A topic of the session's broker, its producer, and sources that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kafka import KafkaProducer

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.sources.source import Source, open_source
from livectr.local.kafka import create_topics
from tests.ingest.reading import Read, Send
from tests.waiting import left_s


@pytest.fixture
def topic(kafka_url: str, topic_name: Callable[[str], str]) -> str:
    """A topic with two partitions."""
    name = topic_name("impressions")
    create_topics(kafka_url, {name: 2})
    return name


@pytest.fixture
def send(kafka_url: str) -> Iterator[Send]:
    """send(topic, values, partition=0, keys=None): returns when the broker has them."""
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url), max_request_size=8 << 20)

    def send(
        topic: str, values: Sequence[bytes | None], partition: int = 0, keys: Sequence[bytes] | None = None
    ) -> None:
        for number, value in enumerate(values):
            producer.send(topic, value=value, key=keys[number] if keys else None, partition=partition)
        producer.flush(timeout=left_s())

    yield send
    producer.close()


@pytest.fixture
def read(kafka_url: str) -> Iterator[Read]:
    """Opens sources; closes them at the end."""
    opened: list[Source] = []

    def read(
        *streams: Stream | Table,
        url: str = kafka_url,
        until_end: bool = True,
        letters: DeadLetters | None = None,
        **options: Any,
    ) -> Source:
        letters = letters or DeadLetters(None)
        opened.append(open_source(url, streams, until_end=until_end, dead_letters=letters, **options))
        return opened[-1]

    yield read
    for source in opened:
        source.close()
