"""One partition, from chunks to examples: any chunking, any interleaving, a restart after any chunk."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest import dtypes
from ingest.label_join import Ready, required_columns, used_columns
from ingest.partition import Partition
from ingest.pipeline import Pipeline
from ingest.sources.base import Chunk, Position
from ingest.state import SourceState
from ingest.streams import Stream, Table, labelled
from tests.ingest.joined_logs import Log, expected_partition, pipeline, random_logs


class Reader:
    """Feeds the topics of one partition piece by piece."""

    def __init__(self, pipe: Pipeline, logs: list[Log]) -> None:
        self.pipe, self.logs = pipe, logs
        self.partition = Partition(pipe, 0, None)
        self.read = [0] * len(logs)
        self.out: list[Ready] = []

    def step(self, topic: int, count: int) -> None:
        stream = self.pipe.streams[topic]
        names = used_columns(self.pipe)[stream.topic]
        schema = pa.schema([(name, dtypes.arrow_type(stream.columns[name])) for name in names])
        begin = self.read[topic]
        end = self.read[topic] = min(begin + count, len(self.logs[topic]))
        batch = pa.RecordBatch.from_pylist(self.logs[topic][begin:end], schema=schema)
        offset, index = np.arange(begin, end), np.zeros(end - begin, np.int32)
        self.partition.add(topic, Chunk(stream.topic, 0, batch, offset, index, 0, Position(end, 0)))
        self.advance()

    def advance(self) -> None:
        free = [read == len(log) for read, log in zip(self.read, self.logs, strict=True)]
        self.partition.advance(free, ended=all(free))
        order = self.partition.ready.orders(1 << 30)
        assert np.all(order < self.partition.frontier) or all(free)

    def take(self, count: int) -> None:
        self.out += self.partition.ready.take(min(count, len(self.partition.ready)))

    def restart(self) -> None:
        parts = SourceState({0: self.partition.state()}).parts()
        state = SourceState.from_parts(parts)
        assert SourceState.from_parts(state.parts()).parts() == parts
        self.partition = Partition(self.pipe, 0, state.partitions[0])
        positions = self.partition.positions()
        self.read = [positions[stream.topic].offset for stream in self.pipe.streams]

    def rest(self) -> list[tuple[int, float, int, int, int]]:
        """Everything up to the end, as (order, label, user, instance, time) rows."""
        for topic in range(len(self.logs)):
            self.step(topic, 1 << 30)
        assert self.partition.ended
        self.take(1 << 30)
        rows = []
        for part in self.out:
            meta = part.rows.select(["#user", "#instance", "#time"]).to_pydict().values()
            rows += zip(part.order.tolist(), part.label.tolist(), *meta, strict=True)
        return rows


STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 25), st.integers(0, 10), st.booleans()), max_size=25
)
"""topic, records to read, examples to take, whether to restart then"""


@pytest.mark.parametrize("correct_late", [False, True])
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), STEPS)
def test_examples_depend_on_the_log_alone(
    correct_late: bool, seed: int, steps: list[tuple[int, int, int, bool]]
) -> None:
    logs = random_logs(seed, partitions=1)
    reader = Reader(pipeline(correct_late=correct_late), [logs.impressions[0], logs.clicks[0]])
    for topic, count, taken, restart in steps:
        reader.step(topic, count)
        reader.take(taken)
        if restart:
            reader.restart()
    wanted = expected_partition(logs, 0, correct_late=correct_late)
    assert reader.rest() == [(e.order, e.label, e.user, e.instance, e.time_ms) for e in wanted]


def test_columns_of_the_released_are_forgotten() -> None:
    """The memory of the join is the window's: nothing of a released impression stays."""
    rows = [
        {"request_id": f"r{i}", "user_id": 1, "ad_id": 2, "ts": i * 1000, "query": "", "price": 0.0}
        for i in range(50_000)
    ]
    for correct_late, windows_ms in ((False, 60_000), (True, 660_000)):
        reader = Reader(pipeline(correct_late=correct_late), [rows, []])
        for _ in range(50):
            reader.step(0, 1000)
            reader.take(1 << 30)
        log = reader.partition.joiner._columns
        kept = sum(part.batch.num_rows for part in log._parts)
        assert kept <= windows_ms / 1000 + 2 * 16_384
        assert len(reader.rest()) == 50_000


CLICK_LOG = dict(columns={"user": "string", "ad": "int32", "ts": "int64", "hit": "bool"}, key="user")
people = Table("people", key="user", columns={"user": "string", "age": "int32"})


@pytest.mark.parametrize("time", ["ts", None])
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=40), STEPS)
def test_a_labelled_log_leaves_in_order(
    time: str | None, times: list[int], steps: list[tuple[int, int, int, bool]]
) -> None:
    stream = Stream("log", time=time, **CLICK_LOG)
    view = labelled(stream, label="hit").lookup(people)
    pipe = Pipeline(view, sparse=dict(ad=view.ad, age=people.age), rank=None)
    log = [{"user": f"u{t % 3}", "ad": i, "ts": t, "hit": t % 2 == 0} for i, t in enumerate(times)]
    reader = Reader(pipe, [log])
    for _, count, taken, restart in steps:
        reader.step(0, count)
        reader.take(taken)
        if restart:
            reader.restart()
    rows = reader.rest()
    orders = list(range(len(log))) if time is None else np.maximum.accumulate(times or [0]).tolist()
    assert [row[0] for row in rows] == orders[: len(log)]
    assert [row[1] for row in rows] == [float(row["hit"]) for row in log]
    assert len({row[3] for row in rows}) == len(log)
    assert [row[4] for row in rows] == (orders if time is None else times)[: len(log)]
    assert required_columns(pipe) == {"log": ("hit",)}
