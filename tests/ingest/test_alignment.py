"""A partition whose event time is read ten times as fast as another's waits for it, and fills no memory."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaProducer

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.back_pressure import READY_ROWS
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.sources.source import open_source
from livectr.local.kafka import create_topics

COLUMNS = {"user": "int64", "ts": "int64", "label": "int32"}
ROWS, GROUP_ROWS, SHARE = 400_000, 2_000, 5_000


def pipeline(topic: str = "views") -> Pipeline:
    views = Stream(topic, key="user", time="ts", columns=COLUMNS)
    log = labelled(views, label="label")
    return Pipeline(log, sparse={"user": log.user}, rank=None)


def write(folder: Path) -> None:
    """Partition 0 holds ten hours, partition 1 one hour, in as many rows."""
    (folder / "views").mkdir()
    for number, step_ms in enumerate((90, 9)):
        numbers = np.arange(ROWS)
        columns = {"user": numbers % 1000 * 2 + number, "ts": 10**12 + numbers * step_ms}
        rows = pa.table({**columns, "label": (numbers % 3 == 0).astype(np.int32)})
        pq.write_table(rows, folder / "views" / f"{number}.parquet", row_group_size=GROUP_ROWS)


def read(url: str, world: int, topic: str = "views") -> tuple[list[tuple[int, int]], list[int]]:
    """Examples as (order, instance) in the global sequence, and the greatest number of ready ones by rank.

    Like a trainer it takes batches of 4,096 examples below the frontier of all ranks, and a rank that has a
    batch reads nothing (`trainer.stream.batcher`).
    """
    ranks = [
        ExampleSource(
            *(pipeline(topic), url, ReadOptions(until_end=True)),
            rank=rank,
            world=world,
            dead_letters=DeadLetters(None),
        )
        for rank in range(world)
    ]
    rows: list[tuple[int, int]] = []
    most = [0] * world
    while not all(rank.ended for rank in ranks):
        for number, rank in enumerate(ranks):
            if np.count_nonzero(rank.orders(4096)[0] < rank.frontier) < 4096:
                rank.poll(0.01)
            most[number] = max(most[number], rank.stats.ready + rank.stats.waiting)
        frontier = min(rank.frontier for rank in ranks)
        for rank in ranks:
            examples = rank.pop(int(np.count_nonzero(rank.orders(4096)[0] < frontier)))
            rows += zip(examples.order.tolist(), examples.instance.tolist(), strict=True)
    for rank in ranks:
        examples = rank.pop(rank.stats.ready)
        rows += zip(examples.order.tolist(), examples.instance.tolist(), strict=True)
        rank.close()
    return sorted(rows), most


def test_memory_is_bounded_and_the_sequence_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.setattr(open_source, "__kwdefaults__", {"max_queue_bytes": 1 << 17})
    monkeypatch.setattr("livectr.ingest.join.back_pressure.READY_ROWS", 2 * SHARE)
    sequence, (most,) = read(f"file:{tmp_path}", 1)
    # A share for each partition, and what the queue and one row group held when the partition was paused.
    queued = (1 << 17) // (8 * 3) + 2 * GROUP_ROWS
    assert most <= 2 * SHARE + 2 * queued < ROWS // 10
    assert len(sequence) == 2 * ROWS
    of_two, both = read(f"file:{tmp_path}", 2)
    assert of_two == sequence and max(both) <= 2 * SHARE + 2 * queued
    monkeypatch.setattr("livectr.ingest.join.back_pressure.READY_ROWS", 100 * READY_ROWS)
    unaligned, (much,) = read(f"file:{tmp_path}", 1)
    assert unaligned == sequence and much > 10 * most


@pytest.mark.full
def test_so_it_is_on_a_broker(
    kafka_url: str, topic_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, rows, text = topic_name("views"), 100_000, "x" * 400
    create_topics(kafka_url, {topic: 2})
    with KafkaProducer(bootstrap_servers=kafka_servers(kafka_url), linger_ms=50) as producer:
        for number, step_ms in enumerate((90, 9)):
            for i in range(rows):
                row = {"user": i % 1000 * 2 + number, "ts": 10**12 + i * step_ms, "label": int(i % 3 == 0)}
                producer.send(topic, json.dumps({**row, "unread": text}).encode(), partition=number)
    monkeypatch.setattr(open_source, "__kwdefaults__", {"max_queue_bytes": 1 << 17})
    monkeypatch.setattr("livectr.ingest.join.back_pressure.READY_ROWS", 2 * SHARE)
    sequence, (most,) = read(kafka_url, 1, topic)
    assert len(sequence) == 2 * rows and sequence == sorted(sequence)
    of_two, both = read(kafka_url, 2, topic)
    assert of_two == sequence
    monkeypatch.setattr("livectr.ingest.join.back_pressure.READY_ROWS", 100 * READY_ROWS)
    unaligned, (much,) = read(kafka_url, 1, topic)
    assert unaligned == sequence
    # Besides the shares: what the queue held, and fetches of 4 MiB, when the partition was paused.
    assert max(most, *both) < rows / 2 < 0.8 * rows < much
