"""Kafka record batches: an unreadable batch costs its own records, not the partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.record.default_records import DefaultRecordBatchBuilder

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.chunks import Position, UnreadableMessage
from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.limits import RecordLimits
from livectr.ingest.sources.kafka_batches import ReadableBatch
from livectr.ingest.sources.source import open_source
from livectr.local.kafka import create_topics
from tests.ingest.decoding import Letters
from tests.ingest.reading import assign, event, rows, stream, to_end
from tests.waiting import left_s

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LIMIT = 1 << 20


class NoText(str):
    """The key of a header, whose bytes on the wire are no UTF-8."""

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe"


def batch_of(records: Sequence[tuple[bytes, Sequence[tuple[str, bytes]]]], codec: str) -> ReadableBatch:
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], False, -1, -1, -1, 1 << 30)
    for offset, (value, headers) in enumerate(records):
        builder.append(offset, 1000, None, value, headers)
    return ReadableBatch(bytes(builder.build()))


@pytest.mark.parametrize("codec", CODECS)
def test_one_record_that_cannot_be_read(codec: str) -> None:
    """Its neighbours keep their offsets, also across the pieces in which a batch is read."""
    bad = {0, 7, 8, 1030, 2999}
    records = [(b"%d" % n, [(NoText("x"), b"")] if n in bad else [("x", b"y")]) for n in range(3000)]
    batch = batch_of(records, codec)
    assert batch.validate_crc()
    found = list(batch)
    assert [record.offset for record in found] == list(range(3000))
    assert {n for n, record in enumerate(found) if isinstance(record.value, UnreadableMessage)} == bad
    assert all(record.value == b"%d" % n for n, record in enumerate(found) if n not in bad)
    assert "UnicodeDecodeError" in found[7].value.detail


def test_a_record_whose_length_is_wrong_ends_its_batch() -> None:
    batch = batch_of([(b"%d" % n, []) for n in range(5)], "none")
    whole = [record.value for record in batch]
    assert whole == [b"0", b"1", b"2", b"3", b"4"]
    batch = batch_of([(b"%d" % n, []) for n in range(5)], "none")
    size = (len(batch._buffer) - batch.HEADER_STRUCT.size) // 5
    batch._buffer[batch.HEADER_STRUCT.size + 2 * size] = 0x7F
    found = [record.value for record in batch]
    assert found[:2] == [b"0", b"1"]
    assert len(found) == 3
    assert "nor are those up to offset 4" in found[2].detail


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_a_batch_is_unpacked_up_to_the_limit(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadableBatch, "unpacked_bytes", LIMIT)
    (record,) = batch_of([(bytes(4 * LIMIT), [])], codec)
    assert record.value.detail == (
        "the batch of offsets 0 to 0 is not readable: more than 1048576 bytes when they are unpacked"
    )
    (record,) = batch_of([(bytes(LIMIT), [])] * 3, codec)
    assert (record.offset, record.value.rows) == (0, 3)
    (record,) = batch_of([(bytes(LIMIT - 100), [])], codec)
    assert record.value == bytes(LIMIT - 100)
    damaged = batch_of([(bytes(LIMIT - 100), [])], codec)
    damaged._buffer[damaged.HEADER_STRUCT.size + 5 :] = b"\x01" * 200
    (record,) = damaged
    assert "not readable" in record.value.detail


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_such_batches_in_a_broker(kafka_url: str, topic_name: Callable[[str], str], codec: str) -> None:
    topic = topic_name("impressions")
    create_topics(kafka_url, {topic: 1})
    with KafkaProducer(
        bootstrap_servers=kafka_servers(kafka_url),
        compression_type=None if codec == "none" else codec,
        max_request_size=64 * LIMIT,
        linger_ms=0,
    ) as producer:

        def send(value: bytes, **more: Any) -> None:
            producer.send(topic, value, partition=0, **more).get(timeout=left_s())

        send(event(0))
        send(event(1), headers=[(NoText("trace"), b"1")])
        send(event(2))
        send(b'{"user_id": 3, "page": "' + b" " * (8 * LIMIT) + b'"}')
        send(event(4))
    letters = Letters()
    limits = RecordLimits(unpacked_bytes=2 * LIMIT)
    source = open_source(kafka_url, [stream(topic)], until_end=True, dead_letters=letters, limits=limits)
    try:
        places = assign(source)
        source.start()
        chunks = to_end(source, places)
    finally:
        source.close()
    assert rows(chunks, (topic, 0)) == [(0, 0, 0), (2, 0, 2), (4, 0, 4)]
    assert chunks[-1].next == Position(5, 0)
    assert {place: said[0] for place, said in letters.all.items()} == {
        (1, 0): Reason.BAD_BATCH,
        (3, 0): Reason.OVERSIZE if codec == "none" else Reason.BAD_BATCH,
    }
