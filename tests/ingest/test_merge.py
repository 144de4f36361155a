"""The event-time merge against a sort, in any chunking and with a restart at any point."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.merge import BELIEVED, FIRST, JUMP_MS, LAST, Clock, Counter, Merge
from ingest.sources.base import Chunk, Position
from ingest.streams import Stream

A = Stream("a", key="user", time="ts", columns={"user": "int64", "ts": "int64"})
B = Stream("b", key="user", time="ts", columns={"user": "int64", "ts": "int64"})
UNTIMED = Stream("a", key="user", columns={"user": "int64", "ts": "int64"})

TIMES = st.lists(st.one_of(st.integers(0, 60), st.just(50)), max_size=25)
FAR = st.lists(st.one_of(st.integers(0, 60), st.integers(50 * JUMP_MS, 51 * JUMP_MS)), max_size=40)
STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.booleans()), max_size=20)
"""topic to read on, records to read, whether to restart afterwards"""


class Reader:
    """Two logs, read piece by piece. Three records share a message; every fifth record was filtered out."""

    def __init__(self, times: tuple[list[int], list[int]], streams: tuple[Stream, Stream] = (A, B)) -> None:
        self.times, self.streams = times, streams
        self.merge = Merge(streams)
        self.read = [0, 0]
        self.rows: list[tuple[int, int, int]] = []
        self.marks: list[int] = []

    def step(self, topic: int, count: int) -> None:
        begin = self.read[topic]
        end = self.read[topic] = min(begin + count, len(self.times[topic]))
        rows = np.array([row for row in range(begin, end) if row % 5 != 4], np.int64)
        batch = pa.record_batch({"user": rows, "ts": np.array(self.times[topic], np.int64)[rows]})
        name = self.streams[topic].topic
        chunk = Chunk(name, 0, batch, rows // 3, (rows % 3).astype(np.int32), 0, Position(end // 3, end % 3))
        self.merge.add(topic, chunk)
        self.release()

    def release(self) -> None:
        ended = [self.read[topic] == len(self.times[topic]) for topic in (0, 1)]
        events = self.merge.release(self.merge.bound(ended))
        users = [batch.column("user").to_pylist() if batch else [] for batch in events.batches]
        rows = [
            iter(zip(user, times.tolist(), strict=True))
            for user, times in zip(users, events.times, strict=True)
        ]
        self.rows += [(topic, *next(rows[topic])) for topic in events.topic.tolist()]
        self.marks += events.mark.tolist()

    def restart(self) -> None:
        """What is not released is read again."""
        positions = self.merge.positions()
        self.merge = Merge(self.streams, json.loads(json.dumps(self.merge.state())))
        assert self.merge.positions() == positions
        for topic, stream in enumerate(self.streams):
            self.read[topic] = positions[stream.topic].offset * 3 + positions[stream.topic].index


def run(reader: Reader, steps: list[tuple[int, int, bool]]) -> Reader:
    for topic, count, restart in steps:
        reader.step(topic, count)
        if restart:
            reader.restart()
    for topic in (0, 1):
        reader.step(topic, 1000)
    reader.release()
    return reader


def by_sort(times: tuple[list[int], list[int]]) -> list[tuple[int, int, int]]:
    events = []
    for topic, log in enumerate(times):
        kept = [row for row in range(len(log)) if row % 5 != 4]
        marks, _ = Clock().marks(np.array([log[row] for row in kept], np.int64))
        events += [(mark, topic, row, log[row]) for mark, row in zip(marks.tolist(), kept, strict=True)]
    return [event[1:] for event in sorted(events)]


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.tuples(TIMES, TIMES), st.tuples(FAR, FAR)), STEPS)
def test_equals_a_sort_in_any_chunking_with_restarts(
    times: tuple[list[int], list[int]], steps: list[tuple[int, int, bool]]
) -> None:
    reader = run(Reader(times), steps)
    assert reader.rows == by_sort(times)
    assert reader.marks == sorted(reader.marks)
    assert reader.merge.waiting() == [0, 0]
    assert reader.marks == run(Reader(times), []).marks


@settings(max_examples=100, deadline=None)
@given(TIMES, STEPS)
def test_a_log_without_time_keeps_its_order(times: list[int], steps: list[tuple[int, int, bool]]) -> None:
    reader = run(Reader((times, []), (UNTIMED, B)), steps)
    kept = [row for row in range(len(times)) if row % 5 != 4]
    assert reader.rows == [(0, row, place) for place, row in enumerate(kept)]
    assert reader.marks == list(range(len(kept)))
    assert Counter(3).bound == 3


@settings(max_examples=200, deadline=None)
@given(FAR, st.lists(st.integers(0, 40), max_size=5))
def test_marks_do_not_depend_on_chunks(times: list[int], cuts: list[int]) -> None:
    ts = np.array(times, np.int64)
    clock, marks = Clock(), []
    for part in np.split(ts, sorted(cut % (len(ts) + 1) for cut in cuts)):
        if clock.waits and len(part):
            marks = [clock.start(int(part[0]))]
        found, clock = clock.marks(part)
        marks += found.tolist()
    whole, after = Clock().marks(ts)
    assert marks == whole.tolist() == sorted(marks)
    assert clock == after


def test_one_far_record_does_not_move_the_clock_but_a_gap_does() -> None:
    ts = np.array([0, 10, 90 * JUMP_MS, 20], np.int64)
    marks, clock = Clock().marks(ts)
    assert marks.tolist() == [0, 10, 10, 20] and clock == Clock(20)
    later = 90 * JUMP_MS + np.arange(BELIEVED + 2)
    marks, clock = clock.marks(later)
    assert marks.tolist() == [20] * (BELIEVED - 1) + later[[0, BELIEVED, BELIEVED + 1]].tolist()


def test_a_first_record_from_the_far_future_stalls_nothing() -> None:
    day = JUMP_MS
    assert Clock().marks(np.array([400 * day, 10, 20]))[0].tolist() == [10, 10, 20]
    assert Clock().marks(np.array([10, 400 * day, 20]))[0].tolist() == [10, 10, 20]
    assert Clock().marks(np.array([day, 0, 2 * day]))[0].tolist() == [day, day, 2 * day]  # not far
    _, clock = Clock().marks(np.array([400 * day]))
    assert clock.waits and clock.bound == FIRST and not clock.marks(np.array([10]))[1].waits
    for first in (0, 1):  # the broken record alone in its chunk, or not
        reader = Reader(([400 * day, 10, 20, 30], [5, 15, 25, 35]))
        if first:
            reader.step(0, 1)
            assert not reader.rows
        reader.step(1, 3)
        assert not reader.rows
        reader.step(0, 3 - first)
        assert reader.marks == [5, 10, 10, 15]
        assert reader.rows == [(1, 0, 5), (0, 0, 400 * day), (0, 1, 10), (1, 1, 15)]


def test_an_idle_topic_that_speaks_again_comes_after_what_was_released() -> None:
    reader = Reader(([10, 20, 30], [5, 15, 40]))
    reader.step(0, 3)
    events = reader.merge.release(reader.merge.bound([False, True]))  # b is thought idle
    assert events.mark.tolist() == [10, 20]
    reader.step(1, 3)
    assert reader.marks == [30, 30, 30, 40]
    assert reader.rows == [(1, 0, 5), (1, 1, 15), (0, 2, 30), (1, 2, 40)]
    assert Merge((A, B)).bound([False, False]) == FIRST and Merge((A, B)).bound([True, True]) == LAST
