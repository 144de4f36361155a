"""Blocks hold what kafka-python's own consumer returns, record by record, from a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatchBuilder

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.chunks import Position
from livectr.ingest.sources.kafka_batches import ReadableBatch, bound_batches
from livectr.ingest.sources.kafka_blocks import RecordBlock, use_blocks
from livectr.kernels.stream.records import read_records
from livectr.local.kafka import create_topics
from tests.ingest.reading import Read, Send, assign, event, rows, stream, to_end
from tests.tiers import examples
from tests.waiting import left_s

CODECS = {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
Record = tuple[int, bytes | None, bytes | None]


def of_blocks(records: list[Any]) -> Iterator[Record]:
    """Offset, key and value of each record; `records` may hold blocks."""
    for record in records:
        if isinstance(record.value, RecordBlock):
            block = record.value
            yield from zip(block.spans.offsets.tolist(), block.keys(), block.values(), strict=True)
        else:
            yield record.offset, record.key, record.value


def drained(url: str, topic: str, *, blocks: bool, first: int = 0) -> tuple[list[Any], int]:
    """Records of partition 0 as a consumer returns them, and where it stands at the end."""
    bound_batches(1 << 24)
    place = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka_servers(url), isolation_level="read_committed")
    if blocks:
        use_blocks(consumer)
    consumer.assign([place])
    consumer.seek(place, first)
    end = consumer.end_offsets([place])[place]
    found: list[Any] = []
    while consumer.position(place) < end:
        for records in consumer.poll(500).values():
            found += records
    at = consumer.position(place)
    consumer.close()
    return found, at


@pytest.mark.parametrize("codec", CODECS)
def test_equal_to_the_consumers_own_records(
    kafka_url: str, topic_name: Callable[[str], str], codec: str | None
) -> None:
    topic, rng = topic_name("blocks"), np.random.default_rng(len(codec or ""))
    create_topics(kafka_url, {topic: 1})
    producer = KafkaProducer(
        bootstrap_servers=kafka_servers(kafka_url), compression_type=codec, linger_ms=5, batch_size=4096
    )
    for n in range(3000):
        value = None if n % 97 == 0 else rng.bytes(int(rng.integers(0, 40)))
        key = b"%d" % n if value is None or n % 3 == 0 else None
        headers = [("trace", rng.bytes(3)), ("empty", b"")] if n % 5 == 0 else None
        producer.send(topic, value=value, key=key, headers=headers, partition=0, timestamp_ms=n)
    producer.flush(timeout=left_s())
    producer.close()
    plain, end = drained(kafka_url, topic, blocks=False)
    found, at = drained(kafka_url, topic, blocks=True)
    assert (list(of_blocks(found)), at) == ([(r.offset, r.key, r.value) for r in plain], end)
    assert all(isinstance(record.value, RecordBlock) for record in found) and len(found) < 1000
    middle, _ = drained(kafka_url, topic, blocks=True, first=1503)
    assert [r for r in of_blocks(middle) if r[0] >= 1503] == list(of_blocks(found))[1503:]


def test_aborted_transactions_and_markers_are_left_out(
    kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    topic = topic_name("blocks")
    create_topics(kafka_url, {topic: 1})
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url), transactional_id=topic)
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for n in range(20):
            producer.send(topic, value=b"%d-%d" % (number, n), partition=0)
        producer.flush(timeout=left_s())
        (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    producer.close()
    plain, end = drained(kafka_url, topic, blocks=False)
    found, at = drained(kafka_url, topic, blocks=True)
    assert (list(of_blocks(found)), at) == ([(r.offset, r.key, r.value) for r in plain], end)
    assert len(plain) == 60 and all(isinstance(record.value, RecordBlock) for record in found)


def test_batches_before_a_damaged_one_are_delivered(
    kafka_url: str, topic_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kafka-python delivers records: the error comes with the next poll."""
    topic = topic_name("blocks")
    create_topics(kafka_url, {topic: 1})
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url))
    for n in range(3):
        producer.send(topic, value=b"%d" % n, partition=0)
        producer.flush(timeout=left_s())  # a batch each
    producer.close()
    valid = ReadableBatch.validate_crc
    monkeypatch.setattr(ReadableBatch, "validate_crc", lambda batch: batch.base_offset != 2 and valid(batch))
    place = TopicPartition(topic, 0)
    bound_batches(1 << 24)
    consumer = KafkaConsumer(bootstrap_servers=kafka_servers(kafka_url))
    use_blocks(consumer)
    consumer.assign([place])
    consumer.seek(place, 0)
    found: list[Any] = []
    with pytest.raises(CorruptRecordError):
        while True:
            for records in consumer.poll(500).values():
                found += records
    assert list(of_blocks(found)) == [(0, None, b"0"), (1, None, b"1")]
    consumer.close()


def test_a_source_starts_and_ends_inside_a_batch(topic: str, send: Send, read: Read) -> None:
    send(topic, [event(user) for user in range(500)])
    source = read(stream(topic))
    places = assign(source)
    source.assign({place: Position(123, 0) if place[1] == 0 else Position(0, 0) for place in places})
    source.start()
    assert rows(to_end(source, places), (topic, 0)) == [(n, 0, n) for n in range(123, 500)]


def batch(
    records: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]], codec: int
) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for offset, key, value, headers in records:
        builder.append(offset, 1000 + offset, key, value, headers)
    return bytes(builder.build())


some_bytes = st.none() | st.binary(max_size=200)
some_records = st.lists(
    st.tuples(
        st.integers(1, 1000),  # a compacted log has gaps
        some_bytes,
        some_bytes,
        st.lists(st.tuples(st.text("abc", max_size=3), st.binary(max_size=5)), max_size=2),
    ),
    max_size=30,
)


@examples(100)
@given(gaps=some_records, codec=st.sampled_from(list(CODECS.values())))
def test_a_batch_as_a_block(gaps: list[Any], codec: int) -> None:
    offset, records = -1, []
    for gap, *rest in gaps:
        offset += gap
        records.append((offset, *rest))
    packed = batch(records, codec)
    plain, block = ReadableBatch(packed), ReadableBatch(packed)
    block.blocks = True
    assert list(of_blocks(list(block))) == [(r.offset, r.key, r.value) for r in plain]
    if records:
        held = ReadableBatch(packed)
        held.blocks = True
        (record,) = held
        assert record.offset == records[-1][0] and record.value.append_ms is None


@examples(200)
@given(data=st.binary(max_size=300), count=st.integers(-2, 40), base=st.integers(0, 1 << 40))
def test_damaged_bytes_are_no_records_or_lie_inside(data: bytes, count: int, base: int) -> None:
    spans = read_records(data, base, count)
    if spans is None:
        return
    assert (np.diff(spans.offsets) > 0).all() and (spans.offsets >= base).all()
    for first, stop in ((spans.key_starts, spans.key_stops), (spans.starts, spans.stops)):
        assert (first >= 0).all() and (stop >= first - 1).all() and (stop <= len(data)).all()


def test_what_is_unusual_comes_record_by_record() -> None:
    packed = batch([(n, None, b"%d" % n, [("ä", b"")] if n == 3 else []) for n in range(5)], 0)
    held = ReadableBatch(packed)
    held.blocks = True
    assert [(record.offset, record.value) for record in held] == [(n, b"%d" % n) for n in range(5)]
