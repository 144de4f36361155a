"""Batches of our producer equal those of kafka-python's own, in bytes and on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.record.memory_records import MemoryRecordsBuilder

from livectr.ingest.addresses import connect_admin, kafka_options, kafka_servers
from livectr.kernels.stream.record_writer import write_records
from livectr.local.kafka import Broker, create_topics
from livectr.simulator import producer as producing
from livectr.simulator.partition import partitions_of
from livectr.simulator.producer import BatchProducer
from livectr.system.errors import ConfigError, InternalError
from tests.waiting import left_s

Record = tuple[int, bytes | None, bytes]
texts = st.binary(max_size=150) | st.integers(0, 9000).map(lambda n: b"x" * n)
MAX_MESSAGE = 1 << 20


def opened(url: str) -> BatchProducer:
    return BatchProducer({**kafka_options(url), "linger_ms": 5, "delivery_timeout_ms": 1 << 30}, MAX_MESSAGE)


def held(url: str, topic: str, partitions: int) -> dict[int, list[Record]]:
    """Partition → offset, key and value of its records."""
    consumer = KafkaConsumer(bootstrap_servers=kafka_servers(url), isolation_level="read_committed")
    places = [TopicPartition(topic, p) for p in range(partitions)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends = consumer.end_offsets(places)
    found: dict[int, list[Record]] = {p: [] for p in range(partitions)}
    while any(consumer.position(place) < ends[place] for place in places):
        for place, records in consumer.poll(500).items():
            found[place.partition] += [(r.offset, r.key, r.value) for r in records]
    consumer.close()
    return found


@given(
    records=st.lists(st.tuples(st.integers(0, 2), st.none() | texts, texts), min_size=1, max_size=300),
    batch_bytes=st.integers(100, 30_000),
)
def test_bytes_and_cuts_equal_those_of_kafka_python(
    records: list[tuple[int, bytes | None, bytes]], batch_bytes: int
) -> None:
    header = producing._HEADER_BYTES
    wanted: list[tuple[int, int, bytes]] = []
    for partition in sorted({record[0] for record in records}):
        builder = None
        mine = [(key, value) for p, key, value in records if p == partition]
        for at, (key, value) in enumerate(mine):
            if builder is None or builder.append(1, key, value) is None:
                builder = MemoryRecordsBuilder(2, 0, batch_bytes)
                assert builder.append(1, key, value)
                wanted.append((partition, 0, b""))
            wanted[-1] = (partition, builder.next_offset(), bytes(builder._builder._buffer[header:]))
            assert at < len(mine)
    partitions, keys, values = zip(*records, strict=True)
    found = write_records(np.array(partitions, np.int32), keys, values, batch_bytes - header)
    assert [(b.partition, b.records, bytes(b.data)) for b in found] == wanted


def test_a_broker_holds_what_kafka_pythons_producer_would_write(
    kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    """Keys go to the partitions of kafka-python's default partitioner, in order."""
    rng, ours, theirs = np.random.default_rng(1), topic_name("ours"), topic_name("theirs")
    keys = [rng.bytes(int(rng.integers(1, 12))) for _ in range(5000)]
    values = [rng.bytes(int(rng.integers(0, 300))) for _ in keys]
    create_topics(kafka_url, {ours: 3, theirs: 3})
    with KafkaProducer(bootstrap_servers=kafka_servers(kafka_url), linger_ms=5) as plain:
        for key, value in zip(keys, values, strict=True):
            plain.send(theirs, value, key=key)
        plain.flush(timeout=left_s())
    with closing(opened(kafka_url)) as producer:
        for part in np.array_split(np.arange(len(keys)), 7):
            some = [keys[i] for i in part]
            producer.write(ours, partitions_of(some, 3), some, [values[i] for i in part])
    assert held(kafka_url, ours, 3) == held(kafka_url, theirs, 3)
    assert producer.records == len(keys) and 21 <= producer.batches < 30


def test_null_keys_and_single_records(kafka_url: str, topic_name: Callable[[str], str]) -> None:
    topic = topic_name("ours")
    create_topics(kafka_url, {topic: 1})
    with closing(opened(kafka_url)) as producer:
        zeros = np.zeros(3, np.int32)
        producer.write(topic, zeros, [None, b"", b"k"], [b"", b"1", b"2"])
        producer.write(topic, zeros[:0], [], [])
        producer.write(topic, zeros[:1], [None], [b"x" * 500_000])
    wanted = [(0, None, b""), (1, b"", b"1"), (2, b"k", b"2"), (3, None, b"x" * 500_000)]
    assert held(kafka_url, topic, 1) == {0: wanted}


def test_batches_too_large_for_a_topic_are_split(kafka_url: str, topic_name: Callable[[str], str]) -> None:
    """`flush` waits for all parts, in order; a record that alone is too large is an error."""
    topic = topic_name("small")
    with connect_admin(kafka_url) as admin:
        config = {"num_partitions": 1, "configs": {"max.message.bytes": "5000"}}
        admin.create_topics({topic: config}, wait_for_metadata=True)
    producer = opened(kafka_url)
    values = [b"%d" % n * 20 for n in range(2000)]
    producer.write(topic, np.zeros(len(values), np.int32), [None] * len(values), values)
    producer.flush()
    assert [value for _, _, value in held(kafka_url, topic, 1)[0]] == values
    assert producer._waiting_bytes == 0
    producer.write(topic, np.zeros(1, np.int32), [None], [b"x" * 6000])
    with pytest.raises(InternalError, match="MessageSizeTooLarge"):
        producer.flush()
    producer._producer.close()


def test_a_message_beyond_the_limit_says_so(kafka_url: str, topic_name: Callable[[str], str]) -> None:
    with closing(opened(kafka_url)) as producer, pytest.raises(ConfigError, match="at most 1,048,576 fit"):
        producer.write(topic_name("ours"), np.zeros(1, np.int32), [None], [b"x" * (MAX_MESSAGE + 1)])


@pytest.mark.full
def test_a_broker_that_goes_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost or sent twice, and writing waits when much is on its way."""
    monkeypatch.setattr(producing, "MAX_WAITING_BYTES", 1 << 20)
    values = [b"%d" % n * 100 for n in range(60_000)]
    partition = (np.arange(len(values)) % 2).astype(np.int32)
    with Broker(data_dir=tmp_path) as broker:
        create_topics(broker.url, {"events": 2})
        producer = opened(broker.url)
        failures: list[Any] = []

        def write() -> None:
            try:
                for start in range(0, len(values), 2000):
                    some = slice(start, start + 2000)
                    producer.write("events", partition[some], [None] * 2000, values[some])
                producer.close()
            except Exception as error:
                failures.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        while producer.records < 10_000 and writer.is_alive():
            pass
        broker.stop()
        assert producer._waiting_bytes < 3 << 20
        broker.start()
        writer.join(left_s())
        assert not writer.is_alive() and not failures
        found = held(broker.url, "events", 2)
    assert [[value for _, _, value in found[p]] for p in (0, 1)] == [values[0::2], values[1::2]]
