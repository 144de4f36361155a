"""A partition that follows the decisions of another gives its examples, however its chunks arrive."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.chunks import Chunk, Position
from livectr.ingest.join import decisions
from livectr.ingest.join.decisions import Decision, Follower, Recorder, split
from livectr.ingest.join.label_join import used_columns
from livectr.ingest.join.partition import Partition
from livectr.ingest.join.state import PartitionState
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.pipeline import Pipeline
from tests.tiers import examples

COLUMNS = {"request_id": "int64", "user_id": "int64", "ts": "int64"}
TOPICS = 2
PER_MESSAGE = 3
DAY_MS = 24 * 3_600_000


def pipeline(max_ahead: str, max_disorder: str | int = 0) -> Pipeline:
    time = EventTime("ts", max_ahead=max_ahead, max_disorder=max_disorder)
    impressions, clicks = (
        Stream(topic, key="user_id", time=time, columns=COLUMNS) for topic in ("impressions", "clicks")
    )
    log = label_join(impressions, clicks, on="request_id", window="20s")
    sparse = dict(user=log.user_id, seen=recent(clicks.request_id, n=3, within="1h"))
    return Pipeline(log, sparse=sparse, rank=None)


PIPELINES = [pipeline("1m"), pipeline("1m", "4s"), pipeline("10s", "2s")]
"""The last believes few times at once, so that records wait to be confirmed."""
Log = list[dict[str, int]]


def logs_of(seed: int) -> list[Log]:
    """Impressions and clicks with disorder, gaps of silence, and wrong clocks."""
    rng = random.Random(seed)
    times = sorted(rng.randrange(0, 200_000, 500) for _ in range(60))
    shown = [
        {"request_id": n, "user_id": rng.randrange(20), "ts": t + rng.choice([0, 0, 0, -1500, -9000])}
        for n, t in enumerate(times)
    ]
    clicks = [
        {**row, "ts": row["ts"] + rng.choice([500, 3000, 30_000])} for row in shown if rng.random() < 0.5
    ]
    clicks.sort(key=lambda row: row["ts"] + rng.randrange(-3000, 3000))
    for log in (shown, clicks):
        for _ in range(rng.randrange(3)):
            rng.choice(log)["ts"] += rng.choice([15_000, DAY_MS])
    return [[{**row, "ts": row["ts"] + DAY_MS} for row in log] for log in (shown, clicks)]


class Kept(NamedTuple):
    """State of a checkpoint, and how much had been decided, had left and was read by then."""

    state: PartitionState | None
    decisions: int
    examples: int
    read: tuple[int, ...]


class Reader:
    """Feeds a partition piece by piece; records that share a message have one offset."""

    def __init__(self, pipe: Pipeline, logs: list[Log], follows: list[Decision] | None = None) -> None:
        self.pipe, self.logs, self.follows = pipe, logs, follows
        self.read = [0] * TOPICS
        self.made: list[Decision] = []
        self.rows: list[tuple[int, float, int, tuple[str, ...]]] = []
        self.kept = Kept(None, 0, 0, (0, 0))
        self._open(None)

    def _open(self, state: PartitionState | None) -> None:
        self.partition = Partition(self.pipe, 0, state, recorded=True, follows=self.follows)
        at = [self.partition.positions()[stream.topic] for stream in self.pipe.streams]
        self.read = [each.offset * PER_MESSAGE + each.index for each in at]

    def step(self, topic: int, count: int, idle: list[bool], now_ms: int = 2 * DAY_MS) -> None:
        begin, end = self.read[topic], min(self.read[topic] + count, len(self.logs[topic]))
        self.read[topic] = end
        schema = pa.schema(
            [(name, pa.int64()) for name in used_columns(self.pipe)[("impressions", "clicks")[topic]]]
        )
        batch = pa.RecordBatch.from_pylist(self.logs[topic][begin:end], schema=schema)
        rows = np.arange(begin, end)
        offset, index = rows // PER_MESSAGE, (rows % PER_MESSAGE).astype(np.int32)
        after = Position(end // PER_MESSAGE, end % PER_MESSAGE)
        self.partition.add(topic, Chunk("", 0, batch, offset, index, after))
        self.partition.advance(idle, ended=False, now_ms=now_ms)

    def pop(self, count: int = 1 << 30) -> None:
        for part in self.partition.ready.pop(min(count, len(self.partition.ready))):
            seen = part.rows.column("recent(clicks.request_id,3,3600000)").to_pylist()
            ids = part.rows.column("#instance").to_pylist()
            self.rows += zip(part.order.tolist(), part.label.tolist(), ids, map(tuple, seen), strict=True)

    def checkpoint(self) -> None:
        numbered = self.partition.take_decisions()
        assert [number for number, _ in numbered] == list(
            range(len(self.made), len(self.made) + len(numbered))
        )
        self.made += [Decision.from_json(decision.as_json()) for _, decision in numbered]
        read = tuple(map(max, self.read, self.kept.read))
        self.kept = Kept(self.partition.state(), len(self.made), len(self.rows), read)

    def kill(self) -> None:
        """Resume from the checkpoint: what was decided and what had left since are gone."""
        del self.made[self.kept.decisions :], self.rows[self.kept.examples :]
        self._open(self.kept.state)

    def finish(self) -> None:
        """Read everything, let the clock decide, and end."""
        self.partition.release()
        for topic in range(TOPICS):
            self.step(topic, 1 << 30, [False] * TOPICS)
        self.partition.advance([True] * TOPICS, ended=True)
        self.pop()


STEPS = st.lists(
    st.tuples(
        st.integers(0, TOPICS - 1),
        st.integers(0, 9),
        st.sampled_from([(False, False), (False, False), (True, False), (False, True), (True, True)]),
        st.sampled_from(["", "", "", "pop", "checkpoint", "kill"]),
    ),
    max_size=40,
)


def live(seed: int, pipe: Pipeline, steps: list[tuple[int, int, tuple[bool, ...], str]]) -> Reader:
    """A run in which topics count as idle at any time, and which is killed at any time."""
    reader = Reader(pipe, logs_of(seed))
    for topic, count, silent, then in steps:
        # A topic is idle only when it is read to its end, which lies behind all that was read before a kill.
        idle = [
            quiet and at >= end for quiet, at, end in zip(silent, reader.read, reader.kept.read, strict=True)
        ]
        reader.step(topic, count, idle)
        if then == "pop":
            reader.pop(5)
        elif then == "checkpoint":
            reader.checkpoint()
        elif then == "kill":
            reader.kill()
    for topic, read in enumerate(reader.kept.read):  # what was read before a kill is read again
        reader.step(topic, max(0, read - reader.read[topic]), [False] * TOPICS)
    reader.pop()
    reader.checkpoint()
    return reader


@examples(200)
@given(
    st.integers(0, 99), st.sampled_from(PIPELINES), STEPS, st.integers(0, 9), st.sampled_from([1, 4, 1 << 15])
)
def test_a_replay_gives_the_live_runs_examples(
    seed: int, pipe: Pipeline, steps: list[tuple[int, int, tuple[bool, ...], str]], order: int, rows: int
) -> None:
    """Topics are read in any order, and no further than the live run has read; the replay is killed, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions, "ROWS", rows)
        found = live(seed, pipe, steps)
    reader = Reader(pipe, found.logs, found.made)
    rng = random.Random(order)
    while any(own < end for own, end in zip(reader.read, found.read, strict=True)):
        topic = rng.randrange(TOPICS)
        reader.step(topic, min(rng.randrange(1, 20), found.read[topic] - reader.read[topic]), [True] * TOPICS)
        kind = rng.randrange(12)
        if kind == 0:
            reader.checkpoint()
        elif kind == 1:
            reader.kill()
    reader.step(0, 0, [True] * TOPICS)
    assert reader.partition.decisions_left == 0
    reader.pop()
    reader.checkpoint()
    assert reader.rows == found.rows
    assert reader.made == found.made
    found.finish()
    reader.finish()
    assert reader.rows == found.rows


def test_without_its_decisions_a_replay_differs() -> None:
    """The log alone does not say when a topic was idle."""
    steps: list[tuple[int, int, tuple[bool, ...], str]] = [
        (0, 40, (False, True), ""),
        (1, 10, (False, False), ""),
        (0, 20, (False, False), ""),
    ]
    found = live(1, PIPELINES[0], steps)
    assert found.made
    alone = Reader(PIPELINES[0], found.logs, [])
    for topic in range(TOPICS):
        alone.step(topic, found.read[topic], [False] * TOPICS)
    alone.pop()
    assert alone.rows != found.rows


def test_a_long_silence_is_few_decisions() -> None:
    """A topic that is idle for long costs a decision for each so many records, not for each chunk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions, "ROWS", 20)
        found = live(2, PIPELINES[0], [(0, 1, (False, True), "")] * 60)
    assert 2 <= len(found.made) <= 60 // 20 + 2


def test_a_chunk_is_split_inside_of_a_message() -> None:
    batch = pa.record_batch({"row": np.arange(7)})
    rows = np.arange(2, 9)
    chunk = Chunk("t", 0, batch, rows // 3, (rows % 3).astype(np.int32), Position(3, 0))
    first, rest = split(chunk, Position(1, 2))
    assert first.batch.column(0).to_pylist() == [0, 1, 2] and first.next == Position(1, 2)
    assert rest.batch.column(0).to_pylist() == [3, 4, 5, 6] and rest.next == Position(3, 0)
    assert (rest.offset[0], rest.index[0]) == (1, 2)


def decision(now_ms: int, *read: int) -> Decision:
    return Decision(tuple(Position(offset, 0) for offset in read), (True,) * len(read), now_ms, ended=False)


def test_a_decision_that_says_something_of_its_own_is_not_extended() -> None:
    recorder = Recorder(3, kept=True)
    for now_ms, single in ((1, False), (2, False), (3, True), (4, False), (5, False)):
        recorder.note(decision(now_ms, 0), 1, single=single)
    assert recorder.take() == [(3, decision(2, 0)), (4, decision(3, 0)), (5, decision(5, 0))]
    assert recorder.take() == [] and recorder.count == 6


class Fed:
    """Partition that notes what it is given and which decisions it repeats."""

    late_topics = False
    read_before = (Position(0, 0), Position(0, 0))

    def __init__(self) -> None:
        self.read: tuple[Position, ...] = (Position(0, 0), Position(0, 0))
        self.seen: list[tuple[int, list[int]] | int] = []

    def feed(self, topic: int, chunk: Chunk) -> None:
        self.read = tuple(chunk.next if i == topic else at for i, at in enumerate(self.read))
        self.seen.append((topic, chunk.offset.tolist()))

    def repeat(self, decision: Decision | None) -> bool:
        if decision is not None:
            self.seen.append(decision.now_ms)
        return decision is not None


def chunk_of(begin: int, end: int) -> Chunk:
    rows = np.arange(begin, end)
    batch = pa.record_batch({"row": rows})
    return Chunk("t", 0, batch, rows, np.zeros(len(rows), np.int32), Position(end, 0))


def test_all_chunks_before_a_decision_are_fed_first() -> None:
    """Records come in many chunks while a decision waits for the other topic."""
    follower, fed = Follower([decision(1, 5, 1), decision(2, 7, 1)], topics=2), Fed()
    for begin, end in ((0, 2), (2, 4), (4, 6)):
        follower.hold(0, chunk_of(begin, end))
    assert list(follower.awaits(fed)) == [1]
    follower.advance(fed)
    assert fed.seen == [(0, [0, 1]), (0, [2, 3]), (0, [4])] and follower.left == 2
    follower.hold(1, chunk_of(0, 3))
    assert follower.advance(fed)
    assert fed.seen[3:] == [(1, [0]), 1, (0, [5])] and follower.left == 1
    assert follower.rows(1) == 2 and 0 in follower.awaits(fed)
    follower.hold(0, chunk_of(6, 9))
    assert follower.advance(fed)
    assert fed.seen[6:] == [(0, [6]), 2, (0, [7, 8]), (1, [1, 2])] and follower.left == 0


@pytest.mark.parametrize("pipe", PIPELINES)
def test_a_replay_continues_where_no_decision_is_left(pipe: Pipeline) -> None:
    """It was killed while the records that a checkpoint had read last were not released yet: the clock that
    it begins with stands before them. No decision is to come that it could wait for."""
    logs = logs_of(3)
    whole, parts = Reader(pipe, logs, None), Reader(pipe, logs, [])
    for end in range(10, 60, 10):
        for topic in range(TOPICS):
            for reader in (whole, parts):
                reader.step(topic, end - reader.read[topic], [False] * TOPICS)
        parts.checkpoint()
        parts.kill()
    for topic in range(TOPICS):
        parts.step(topic, whole.read[topic] - parts.read[topic], [False] * TOPICS)
    assert whole.partition.take_decisions() == []
    assert parts.partition.read == whole.partition.read
    for reader in (whole, parts):
        reader.pop()
    assert len(whole.rows) > 5 and parts.rows == whole.rows
