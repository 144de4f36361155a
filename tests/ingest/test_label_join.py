"""Partition, from chunks to examples: any chunking, any interleaving, a restart after any chunk."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.join.label_join import required_columns
from livectr.ingest.join.payload import Payload
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.streams import Stream, label_join, labelled, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from tests.ingest.joined_logs import WINDOW_MS, expected_partition, pipeline, random_logs
from tests.ingest.partition_reader import Reader
from tests.tiers import examples

STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 25), st.integers(0, 10), st.booleans()), max_size=25
)
"""topic, records to read, examples to take, whether to restart then"""


@pytest.mark.parametrize("delayed", ["wait", "fnw", "es_dfm"])
@examples(40, tried=15)
@given(st.integers(0, 10_000), STEPS)
def test_examples_depend_on_the_log_alone(
    delayed: Delayed, seed: int, steps: list[tuple[int, int, int, bool]]
) -> None:
    logs = random_logs(seed, partitions=1)
    reader = Reader(pipeline(delayed=delayed), [logs.impressions[0], logs.clicks[0]])
    for topic, count, taken, restart in steps:
        reader.step(topic, count)
        reader.pop(taken)
        if restart:
            reader.restart()
    wanted = expected_partition(logs, 0, delayed=delayed)
    assert reader.rest() == [(e.order, e.label, e.late, e.user, e.instance, e.time_ms) for e in wanted]


def test_columns_of_the_released_are_forgotten() -> None:
    """The join's memory covers the window only: columns of released impressions are dropped."""
    rows = [
        {"request_id": f"r{i}", "user_id": 1, "ad_id": 2, "ts": i * 1000, "query": "", "price": 0.0}
        for i in range(50_000)
    ]
    ways: tuple[Delayed, ...] = ("wait", "fnw", "es_dfm")
    for delayed in ways:
        reader = Reader(pipeline(delayed=delayed), [rows, []])
        for _ in range(50):
            reader.step(0, 1000)
            reader.pop(1 << 30)
        log = reader.partition.joiner._clicks._columns  # type: ignore[attr-defined]
        kept = sum(part.batch.num_rows for part in log._parts)
        assert kept <= WINDOW_MS / 1000 + 2 * 16_384
        assert len(reader.rest()) == 50_000 * (1 if delayed == "wait" else 2)


CLICK_LOG: dict[str, Any] = dict(
    columns={"user": "string", "ad": "int32", "ts": "int64", "hit": "bool"}, key="user"
)
people = Table("people", key="user", columns={"user": "string", "age": "int32"})


@pytest.mark.parametrize("time", ["ts", None])
@examples(40, tried=15)
@given(st.lists(st.integers(0, 50), max_size=40), STEPS)
def test_a_labelled_log_leaves_in_order(
    time: str | None, times: list[int], steps: list[tuple[int, int, int, bool]]
) -> None:
    stream = Stream("log", time=time, **CLICK_LOG)
    view = labelled(stream, label="hit").lookup(people)
    pipe = Pipeline(view, sparse=dict(ad=view.ad, age=people.age), rank=None)
    log: list[dict[str, Any]] = [
        {"user": f"u{t % 3}", "ad": i, "ts": t, "hit": t % 2 == 0} for i, t in enumerate(times)
    ]
    reader = Reader(pipe, [log])
    for _, count, taken, restart in steps:
        reader.step(0, count)
        reader.pop(taken)
        if restart:
            reader.restart()
    rows = reader.rest()
    orders = list(range(len(log))) if time is None else np.maximum.accumulate(times or [0]).tolist()
    assert [row[0] for row in rows] == orders[: len(log)]
    assert [row[1] for row in rows] == [float(row["hit"]) for row in log]
    assert len({row[4] for row in rows}) == len(log)
    assert [row[5] for row in rows] == (orders if time is None else times)[: len(log)]
    assert required_columns(pipe) == {"log": ("hit",)}


def test_bytes_of_a_waiting_row_count_its_texts_and_lists() -> None:
    """A bound of memory that overlooked them would be none."""
    event = {"request_id": "int64", "user_id": "int64", "ts": "int64"}
    columns = event | {"query": "string", "tags": "list<string>", "ads": "list<int64>"}
    shown = Stream("shown", key="user_id", time="ts", columns=columns)
    clicks = Stream("clicks", key="user_id", time="ts", columns=event)
    log = label_join(shown, clicks, on="request_id", window="20s")
    seen = recent(clicks.request_id, n=3, within="1h")
    sparse = {"user": log.user_id, "query": log.query, "tags": log.tags, "ads": log.ads, "seen": seen}
    rows = {
        "query": pa.array(["", "abc", None, "äöü"]),
        "tags": pa.array([[], ["a"], ["b", "c"], None], pa.list_(pa.string())),
        "ads": pa.array([[1], [], [1, 2, 3], []], pa.list_(pa.int64())),
    }
    sizes = Payload(Pipeline(log, sparse=sparse, rank=None)).sizes
    # user, place and key: 5 numbers; a history of 3 clicks; 4 offsets; a text in a list counts 16
    fixed = 5 * 8 + 3 * 8 + 4 * 4
    wanted = [fixed + 8, fixed + 3 + 16, fixed + 2 * 16 + 3 * 8, fixed + 6]
    batch = pa.record_batch(rows)
    assert sizes(batch).tolist() == wanted
    assert sizes(batch.slice(1, 1)).tolist() == wanted[1:2] and sizes(batch[:0]).tolist() == []
