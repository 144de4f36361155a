"""Broken records, a missing codec, a broker that goes away: the Kafka source against a real broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from livectr.ingest.addresses import connect_admin, kafka_servers
from livectr.ingest.chunks import Position
from livectr.ingest.dead_letters import letters as deadletter
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.local.kafka import Broker, create_topics
from livectr.system.errors import ConfigError, ConnectError, MismatchError
from tests.ingest.reading import Read, Send, assign, event, poll_until, rows, stream, to_end
from tests.waiting import left_s


@pytest.mark.parametrize("kind", ["LogAppendTime", "CreateTime"])
def test_the_brokers_clock_bounds_event_time(
    kafka_url: str, topic_name: Callable[[str], str], read: Read, kind: str, tmp_path: Path
) -> None:
    """A record far after its append is a dead letter; a producer's own time bounds nothing."""
    name = topic_name("impressions")
    with connect_admin(kafka_url) as admin:
        config = {"num_partitions": 1, "configs": {"message.timestamp.type": kind}}
        admin.create_topics({name: config}, wait_for_metadata=True)
    now_ms = int(time.time() * 1000)
    ahead = [0, 50_000, 600_000, -(10**9), 3_600_000, 2**63 - 1 - now_ms]
    values = [json.dumps({"user_id": n, "ts": now_ms + by, "page": "p"}) for n, by in enumerate(ahead)]
    batch = pa.RecordBatch.from_pylist([json.loads(value) for value in values])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with KafkaProducer(bootstrap_servers=kafka_servers(kafka_url)) as producer:
        for value in (*(value.encode() for value in values), sink.getvalue().to_pybytes()):
            producer.send(name, value, partition=0)
    letters = DeadLetters(tmp_path)
    source = read(stream(name), letters=letters)
    places = assign(source)
    source.start()
    found = rows(to_end(source, places), (name, 0))
    letters.close()
    (file,) = tmp_path.glob("*.jsonl")
    written = [json.loads(line) for line in file.read_text().splitlines()]
    if kind == "CreateTime":
        assert len(found) == 12 and not written
        return
    kept = [0, 1, 3]
    assert found == [*((n, 0, n) for n in kept), *((6, n, n) for n in kept)]
    places_of = [(letter["offset"], letter["index"], letter["reason"]) for letter in written]
    bad = [2, 4, 5]
    assert places_of == [*((n, 0, "bad_time") for n in bad), *((6, n, "bad_time") for n in bad)]
    said = re.search(r"ts is (\d+), but the broker took the record at (\d+),", written[0]["detail"])
    assert said is not None, written[0]["detail"]
    assert int(said[1]) == now_ms + 600_000 and now_ms <= int(said[2]) <= time.time() * 1000


def test_a_codec_that_is_not_installed_is_named(kafka_url: str, topic: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=kafka_servers(kafka_url), compression_type="zstd", linger_ms=100
    )
    for user in range(100):  # one small message alone would not be compressed
        producer.send(topic, event(user), partition=0)
    producer.close()
    code = f"""
import sys
sys.modules["zstandard"] = None  # importing it fails
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.chunks import BEGINNING
from livectr.ingest.sources.source import open_source
from livectr.ingest.language.streams import Stream
from livectr.system.errors import ConfigError
source = open_source("{kafka_url}", [Stream("{topic}", key="user_id", columns=dict(user_id="int64"))],
                     until_end=True, dead_letters=DeadLetters(None))
source.topics()
source.assign({{("{topic}", 0): BEGINNING}})
source.start()
try:
    while not source.at_end("{topic}", 0):
        source.poll(1)
except ConfigError as error:
    print(error)
source.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=left_s(), check=True
    )
    assert done.stdout == "messages are compressed with zstd: pip install zstandard\n"


def test_broken_records_become_letters_in_the_broker(
    kafka_url: str, topic: str, send: Send, read: Read, topic_name: Callable[[str], str]
) -> None:
    bad = {
        3: (b"{", "bad_json"),
        10: (json.dumps({"user_id": "x", "ts": 1, "page": ""}).encode(), "wrong_type"),
        11: (json.dumps({"user_id": 1, "ts": 1}).encode(), "missing_column"),
        50: (None, "no_value"),
        60: (b'{"user_id": 1, "page": "' + b"x" * (5 << 20) + b'"}', "oversize"),
        70: (b"\xff\xff\xff\xff\x00", "bad_arrow"),
    }
    values = [bad[n][0] if n in bad else event(n) for n in range(100)]
    send(topic, values, keys=[b"user"] * 100)
    for _ in range(2):  # the second time is a replay after a crash
        letters = DeadLetters.for_source(kafka_url)
        source = read(stream(topic), letters=letters)
        places = assign(source)
        source.start()
        chunks = to_end(source, places)
        letters.close()
        assert [row[0] for row in rows(chunks, (topic, 0))] == [n for n in range(100) if n not in bad]
        assert letters.counts == {reason: 1 for _, reason in bad.values()}
    found = _messages(kafka_url, deadletter.TOPIC)
    mine = {key: json.loads(value) for key, value in found if key.decode().startswith(f"{topic}/")}
    assert {letter["offset"]: letter["reason"] for letter in mine.values()} == {
        n: why for n, (_, why) in bad.items()
    }
    assert {letter["value_bytes"] for letter in mine.values() if letter["offset"] == 60} == {
        len(bad[60][0] or b"")
    }
    assert mine[f"{topic}/0/3/0".encode()]["value"] == "{"


def _messages(url: str, topic: str) -> list[tuple[bytes, bytes]]:
    consumer = KafkaConsumer(bootstrap_servers=kafka_servers(url))
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end, found = consumer.end_offsets([partition])[partition], []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=500).values():
                found += [(record.key, record.value) for record in records]
        return found
    finally:
        consumer.close()


def test_a_broker_that_goes_away_and_comes_back(tmp_path: Path, read: Read) -> None:
    with Broker(data_dir=tmp_path / "kafka") as broker:
        create_topics(broker.url, {"events": 1})
        place = ("events", 0)

        def produce(first: int, last: int) -> None:
            producer = KafkaProducer(bootstrap_servers=kafka_servers(broker.url))
            for n in range(first, last):
                producer.send("events", event(n), partition=0)
            producer.flush(timeout=left_s())
            producer.close()

        produce(0, 10)
        source = read(stream("events"), url=broker.url, until_end=False)
        assign(source)
        source.start()
        chunks = poll_until(source, lambda chunks: len(rows(chunks, place)) == 10)
        broker.kill()
        poll_until(source, lambda _: not source.at_end(*place))  # nobody knows the end
        broker.start()
        produce(10, 20)
        chunks += poll_until(source, lambda more: len(rows([*chunks, *more], place)) == 20)
        assert rows(chunks, place) == [(n, 0, n) for n in range(20)]
        source.close()


def test_what_cannot_be_found_is_named(kafka_url: str, topic: str, read: Read) -> None:
    with pytest.raises(ConnectError, match=rf"there is no topic nowhere at .*its topics are .*{topic}"):
        read(stream(topic), stream("nowhere")).topics()
    source = read(stream(topic))
    assign(source, {(topic, 0): Position(7, 0)})
    with pytest.raises(MismatchError, match="ends at offset 0, but the checkpoint resumes at 7"):
        source.start()
    with pytest.raises(ConfigError, match="not kafka://HOST:PORT"):
        read(stream(topic), url="kafka://nohost")


@pytest.mark.parametrize("url", ["kafka://127.0.0.1:1", "kafka://no-such-host.invalid:9092"])
def test_an_unreachable_broker_is_reported(url: str) -> None:
    code = f"""
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.sources.source import open_source
from livectr.ingest.language.streams import Stream
from livectr.system.errors import ConnectError
try:
    open_source("{url}", [Stream("t", key="a", columns=dict(a="int64"))], until_end=True,
                dead_letters=DeadLetters(None))
except ConnectError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=left_s(), check=True
    )
    assert f"no Kafka broker answers at {url}" in done.stdout
    with pytest.raises(ConnectError):
        DeadLetters(url)
