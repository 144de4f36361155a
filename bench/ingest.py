"""Ingest: events per second from files on disk through source, label join, look-ups and features."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.features import display_ads
from livectr.ingest.chunks import Chunk, Position
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.label_join import used_columns
from livectr.ingest.join.lookups import Lookups
from livectr.ingest.join.partition import Partition
from livectr.ingest.join.payload import lookup_column
from livectr.ingest.join.ready import ReadyQueue
from livectr.ingest.pipeline import Pipeline

GOAL_EVENTS_PER_S = 100_000
GOAL_JOIN_EVENTS_PER_S = 300_000
PARTITIONS, USERS, ADS = 4, 50_000, 20_000
HOURS = 2
BATCH = 4096
START_MS = 1_700_000_000_000


def events_of(
    impressions: int, seed: int = 1, *, partitions: int = PARTITIONS, start_ms: int = START_MS
) -> dict[str, list[pa.RecordBatch]]:
    """Topic → one batch per partition: impressions in order of time, and clicks on a tenth of them."""
    rng = np.random.default_rng(seed)
    words = np.array([f"word{i}" for i in range(2_000)], object)
    found: dict[str, list[pa.RecordBatch]] = {"impressions": [], "clicks": []}
    for partition in range(partitions):
        n = impressions // partitions
        ts = start_ms + np.sort(rng.integers(0, HOURS * 3_600_000, n))
        event = {
            "request_id": np.char.add(f"{seed}-{partition}-", np.arange(n).astype(str)).astype(object),
            "user_id": rng.integers(0, USERS // partitions, n) * partitions + partition,
            "ad_id": (rng.pareto(1.2, n) * 10).astype(np.int64) % ADS,
            "ts": ts,
        }
        context = {
            "query": words[rng.integers(0, 2_000, n)] + " " + words[rng.integers(0, 2_000, n)],
            "device": words[rng.integers(0, 8, n)],
            "position": rng.integers(0, 10, n).astype(np.int32),
            "site": words[rng.integers(0, 500, n)],
        }
        found["impressions"].append(pa.record_batch({**event, **context}))
        clicked = np.flatnonzero(rng.random(n) < 0.1)
        at = ts[clicked] + rng.exponential(60_000, len(clicked)).astype(np.int64)
        order = np.argsort(at, kind="stable")
        clicks = {name: values[clicked][order] for name, values in event.items()}
        found["clicks"].append(pa.record_batch({**clicks, "ts": at[order]}))
    return found


def tables_of(seed: int = 2) -> dict[str, list[pa.RecordBatch]]:
    """Rows of the look-up tables."""
    rng = np.random.default_rng(seed)
    text = np.array([f"text{i}" for i in range(500)], object)
    users = {"user_id": np.arange(USERS), "age": rng.integers(15, 90, USERS).astype(np.int32)}
    ads = {
        "ad_id": np.arange(ADS),
        "category": rng.integers(0, 50, ADS).astype(np.int32),
        "advertiser": rng.integers(0, 900, ADS),
        "price": rng.random(ADS).astype(np.float32),
        "title": text[rng.integers(0, 500, ADS)],
    }
    return {
        "users": [pa.record_batch({**users, "city": text[rng.integers(0, 500, USERS)]})],
        "ads": [pa.record_batch(ads)],
    }


def write(root: Path, topics: dict[str, list[pa.RecordBatch]], suffix: str) -> None:
    """Each partition as one file: Arrow IPC with batches of 4,096 rows, or JSON lines."""
    for topic, batches in topics.items():
        (root / topic).mkdir(parents=True)
        for partition, batch in enumerate(batches):
            path = root / topic / f"{partition:05d}{suffix}"
            if suffix == ".arrow":
                with pa.ipc.new_file(path, batch.schema) as writer:
                    writer.write_table(pa.Table.from_batches([batch]), max_chunksize=BATCH)
            else:
                with path.open("w") as lines:
                    lines.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())


def read(pipeline: Pipeline, url: str, *, features: bool) -> tuple[int, float]:
    """(events, seconds) from opening the source to its last example, in batches of 4,096."""
    extract = Extractor(pipeline.plan, engine="fused")
    start = time.perf_counter()
    source = ExampleSource(
        pipeline, url, ReadOptions(until_end=True), rank=0, world=1, dead_letters=DeadLetters(None)
    )
    ended, examples = False, 0
    while not ended:
        source.poll(0.05)
        ended, frontier = source.ended, source.frontier
        while len(found := source.orders(BATCH)[0]) == BATCH or (ended and len(found)):
            if not ended and found[-1] >= frontier:
                break
            batch = source.pop(len(found))
            examples += len(batch)
            if features:
                extract(batch.columns)
    seconds = time.perf_counter() - start
    stats = source.stats
    source.close()
    if examples != stats.events["impressions"]:
        raise AssertionError(f"{examples} examples of {stats.events['impressions']} impressions")
    return sum(stats.events.values()), seconds


def join_in_memory(
    pipeline: Pipeline, topics: dict[str, list[pa.RecordBatch]], tables: Path
) -> tuple[int, float]:
    """(events, seconds) of merge, join, histories and look-ups alone, on chunks of 4,096 decoded rows."""
    chunks = []
    for index, name in enumerate(("impressions", "clicks")):
        used = used_columns(pipeline)[name]
        for number, batch in enumerate(topics[name]):
            for begin in range(0, batch.num_rows, BATCH):
                part = batch.select(list(used)).slice(begin, BATCH)
                offset = begin + np.arange(part.num_rows)
                at = Position(begin + part.num_rows, 0)
                chunk = Chunk(name, number, part, offset, np.zeros(len(offset), np.int32), at)
                chunks.append((int(part.column("ts")[0].as_py()), index, chunk))
    chunks.sort(key=lambda entry: entry[:2])
    lookups = Lookups(pipeline.tables, f"file:{tables}", until_end=True, dead_letters=DeadLetters(None))
    partitions = [Partition(pipeline, number, None) for number in range(PARTITIONS)]

    def look_up(ready: ReadyQueue) -> None:
        for part in ready.pop(len(ready)):
            for topic, table in lookups.tables.items():
                table.take(part.rows.column(lookup_column(topic)).to_numpy())

    start = time.perf_counter()
    for _, index, chunk in chunks:
        partition = partitions[chunk.partition]
        partition.add(index, chunk)
        partition.advance([False, False], ended=False)
        look_up(partition.ready)
    for partition in partitions:
        partition.advance([True, True], ended=True)
        look_up(partition.ready)
    seconds = time.perf_counter() - start
    lookups.close()
    return sum(len(chunk) for *_, chunk in chunks), seconds


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of the benchmark's table: files → features, files → examples, and the joins alone."""
    pipeline = display_ads()
    topics = events_of(100_000 if quick else 1_000_000)
    rows: list[dict[str, object]] = []

    def add(figure: str, workload: str, measured: tuple[int, float], goal: float) -> None:
        ours = measured[0] / measured[1]
        size = f"{measured[0]:,} events, {PARTITIONS} partitions, 10 min window"
        rows.append(
            dict(
                figure=figure,
                workload=f"{workload}; {size}",
                unit="events/s",
                ours=ours,
                peer_name=None,
                peer=None,
                ratio=None,
                goal=goal,
                met=ours >= goal,
            )
        )

    with tempfile.TemporaryDirectory() as folder:
        for suffix, name in ((".arrow", "Arrow IPC files"), (".jsonl", "JSON lines")):
            root = Path(folder, name)
            write(root, {**topics, **tables_of()}, suffix)
            add(
                "source → join → features",
                name,
                read(pipeline, f"file:{root}", features=True),
                GOAL_EVENTS_PER_S,
            )
            add("source → join", name, read(pipeline, f"file:{root}", features=False), GOAL_EVENTS_PER_S)
        measured = join_in_memory(pipeline, topics, root)
        add("join, histories, look-ups", "decoded chunks in memory", measured, GOAL_JOIN_EVENTS_PER_S)
    return rows


if __name__ == "__main__":
    for row in run():
        print(row)
