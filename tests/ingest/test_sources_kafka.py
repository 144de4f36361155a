"""The Kafka source against a real broker: records, positions, ends, back-pressure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.chunks import Position
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.tables import Table
from livectr.local.kafka import create_topics
from tests.ingest.reading import Read, Send, arrow, assign, event, poll_until, rows, stream, to_end
from tests.tiers import few
from tests.waiting import until


def test_json_and_arrow_messages(topic: str, send: Send, read: Read) -> None:
    send(topic, [event(0), arrow([1, 2, 3]), event(4), event(5)], partition=0)
    send(topic, [event(user) for user in range(2000)], partition=1)
    source = read(stream(topic))
    assert source.topics() == {topic: [0, 1]}
    places = assign(source)
    source.start()
    chunks = to_end(source, places)
    assert rows(chunks, (topic, 0)) == [(0, 0, 0), (1, 0, 1), (1, 1, 2), (1, 2, 3), (2, 0, 4), (3, 0, 5)]
    assert rows(chunks, (topic, 1)) == [(n, 0, n) for n in range(2000)]
    assert chunks[0].batch.schema.names == ["user_id", "ts", "page"]
    assert source.lag() == dict.fromkeys(places, 0)
    assert source.end_offsets() == {(topic, 0): 4, (topic, 1): 2000}
    sent = [event(0), arrow([1, 2, 3]), event(4), event(5), *map(event, range(2000))]
    assert source.bytes_read() == {topic: sum(map(len, sent))}


@pytest.mark.parametrize("codec", few(["gzip", "snappy", "lz4", "zstd"], "lz4"))
def test_compressed_topics(kafka_url: str, topic: str, read: Read, codec: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=kafka_servers(kafka_url), compression_type=codec, linger_ms=100, batch_size=1 << 20
    )
    users = range(30_000)  # more than a megabyte before compression, in a few batches
    for user in users:
        producer.send(topic, event(user), partition=0)
    producer.send(topic, arrow([30_000, 30_001]), partition=0)
    producer.close()
    source = read(stream(topic))
    places = assign(source)
    source.start()
    found = rows(to_end(source, places), (topic, 0))
    assert found == [*((n, 0, n) for n in users), (30_000, 0, 30_000), (30_000, 1, 30_001)]


def test_resume_at_every_position(topic: str, send: Send, read: Read) -> None:
    send(topic, [event(0), arrow([1, 2, 3]), arrow([]), b"{bad", arrow([4, 5]), event(6)])
    whole = [(0, 0, 0), (1, 0, 1), (1, 1, 2), (1, 2, 3), (4, 0, 4), (4, 1, 5), (5, 0, 6)]
    starts = [*((offset, index) for offset, index, _ in whole), (1, 3), (2, 0), (3, 0), (6, 0)]
    for start in starts:
        source = read(stream(topic))
        places = assign(source, {(topic, 0): Position(*start)})
        source.start()
        chunks = to_end(source, places)
        assert rows(chunks, (topic, 0)) == [row for row in whole if row[:2] >= start]
        assert not chunks or chunks[-1].next == Position(6, 0)
        source.close()


def test_until_end_is_the_end_at_the_start(topic: str, send: Send, read: Read) -> None:
    send(topic, [event(n) for n in range(5)])
    source = read(stream(topic))
    places = assign(source)
    source.pause(places)
    source.start()
    send(topic, [event(n) for n in range(5, 9)])
    source.pause([])
    assert rows(to_end(source, places), (topic, 0)) == [(n, 0, n) for n in range(5)]
    assert source.poll(0.3) == []


def test_following_a_topic(topic: str, send: Send, read: Read) -> None:
    source = read(stream(topic), until_end=False)
    place = (topic, 0)
    assign(source)
    source.start()
    for first in range(0, 9, 3):
        poll_until(source, lambda _: source.at_end(*place))
        send(topic, [event(n) for n in range(first, first + 3)])
        chunks = poll_until(source, lambda chunks: len(rows(chunks, place)) >= 3)
        assert rows(chunks, place) == [(n, 0, n) for n in range(first, first + 3)]
    assert poll_until(source, lambda _: source.at_end(*place)) == []


def test_held_partitions_wait(topic: str, send: Send, read: Read) -> None:
    for partition in range(2):
        send(topic, [event(n) for n in range(5)], partition=partition)
    source = read(stream(topic))
    places = assign(source)
    source.pause([(topic, 1)])
    source.start()
    assert rows(to_end(source, [(topic, 0)]), (topic, 1)) == []
    source.pause([])
    assert rows(to_end(source, places), (topic, 1)) == [(n, 0, n) for n in range(5)]


def test_back_pressure_loses_nothing(topic: str, send: Send, read: Read) -> None:
    for partition in range(2):
        send(topic, [event(n) for n in range(20_000)], partition=partition)
    source = read(stream(topic), max_queue_bytes=1)
    places = assign(source)
    source.start()
    chunks = []
    while not all(source.at_end(*place) for place in places):
        fresh = source.poll(5)
        assert len(fresh) <= 1
        chunks += fresh
    for place in places:
        assert rows(chunks, place) == [(n, 0, n) for n in range(20_000)]


def test_tables_with_deletes(
    kafka_url: str, send: Send, read: Read, topic_name: Callable[[str], str]
) -> None:
    topic = topic_name("ads")
    create_topics(kafka_url, {topic: 1}, compacted=[topic])
    ads = Table(topic, key="ad_id", columns={"ad_id": "int64", "title": "string"})
    send(topic, [b'{"ad_id": 1, "title": "a"}', b'{"ad_id": 2, "title": "b"}'], keys=[b"1", b"2"])
    send(topic, [None, b'{"ad_id": 3, "title": "c"}', None], keys=[b"1", b"3", b"?"])
    letters = DeadLetters(None)
    source = read(ads, letters=letters)
    places = assign(source)
    source.start()
    found: dict[int, str | None] = {}
    for chunk in to_end(source, places):
        deleted = chunk.deleted if chunk.deleted is not None else [False] * len(chunk)
        for row, gone in zip(chunk.batch.to_pylist(), deleted, strict=True):
            found[row["ad_id"]] = None if gone else row["title"]
    assert found == {1: None, 2: "b", 3: "c"}
    assert letters.counts == {"bad_key": 1}


def test_aborted_transactions_are_left_out(kafka_url: str, topic: str, send: Send, read: Read) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url), transactional_id=topic)
    producer.init_transactions()
    for first, finish in ((0, producer.commit_transaction), (3, producer.abort_transaction)):
        producer.begin_transaction()
        for n in range(first, first + 3):
            producer.send(topic, event(n), partition=0)
        finish()
    producer.close()
    end = TopicPartition(topic, 0)
    with closing(
        KafkaConsumer(bootstrap_servers=kafka_servers(kafka_url), isolation_level="read_committed")
    ) as consumer:  # the broker writes its marker after it has answered
        until(lambda: consumer.end_offsets([end])[end] >= 4)
    source = read(stream(topic))
    places = assign(source)
    source.start()
    assert [row[2] for row in rows(to_end(source, places), (topic, 0))] == [0, 1, 2]
    source = read(stream(topic), until_end=False)
    assign(source)
    source.start()
    poll_until(source, lambda _: source.at_end(topic, 0))
