"""Event-time merge against a sort, for any chunks and with a restart at any point."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.join.merge import Merge
from livectr.ingest.language.event_times import EventTime
from livectr.ingest.language.streams import Stream
from livectr.kernels.stream.clock import DOUBTED, FIRST, LAST, Horizon, judge, new_clock
from tests.ingest.merge_reader import STEPS, TIMES, A, B, Reader, run
from tests.tiers import examples

UNTIMED = Stream("a", key="user", columns={"user": "int64", "ts": "int64"})

DAY_MS = 24 * 3_600_000
FAR = st.lists(st.one_of(st.integers(0, 60), st.integers(50 * DAY_MS, 51 * DAY_MS)), max_size=40)


def by_sort(times: tuple[list[int], list[int]]) -> list[tuple[int, int, int]]:
    events = []
    for topic, log in enumerate(times):
        kept = [row for row in range(len(log)) if row % 5 != 4]
        users = np.array(kept, np.int64)
        own, end = np.array(log, np.int64)[users], Horizon(ended=True)
        judged = judge(new_clock(), own, users, max_ahead_ms=60_000, horizon=end)
        known = np.flatnonzero(judged.verdict <= DOUBTED).tolist()
        marks, kept = judged.mark[known], [kept[row] for row in known]
        events += [(mark, topic, row, log[row]) for mark, row in zip(marks.tolist(), kept, strict=True)]
    return [event[1:] for event in sorted(events)]


@examples(300)
@given(st.one_of(st.tuples(TIMES, TIMES), st.tuples(FAR, FAR)), STEPS)
def test_equals_a_sort_in_any_chunking_with_restarts(
    times: tuple[list[int], list[int]], steps: list[tuple[int, int, bool]]
) -> None:
    reader = run(Reader(times), steps)
    assert reader.rows == by_sort(times)
    assert reader.marks == sorted(reader.marks)
    assert reader.merge.waiting() == [0, 0]
    assert reader.marks == run(Reader(times), []).marks


@examples(100)
@given(TIMES, STEPS)
def test_a_log_without_time_keeps_its_order(times: list[int], steps: list[tuple[int, int, bool]]) -> None:
    reader = run(Reader((times, []), (UNTIMED, B)), steps)
    kept = [row for row in range(len(times)) if row % 5 != 4]
    assert reader.rows == [(0, row, place) for place, row in enumerate(kept)]
    assert reader.marks == list(range(len(kept)))


def test_a_first_record_from_the_far_future_stalls_nothing() -> None:
    day = 24 * 3_600_000
    reader = Reader(([400 * day, 10, 20, 30], [5, 15, 25, 35]))
    reader.step(0, 1)
    reader.step(1, 3)
    assert not reader.rows  # nothing bears the first records out
    run(reader, [])
    assert reader.rows == [(1, 0, 5), (0, 0, 400 * day), (0, 1, 10), (1, 1, 15), (0, 2, 20), (1, 2, 25),
                           (0, 3, 30), (1, 3, 35)]  # fmt: skip


def test_records_have_their_right_place_when_they_come_within_the_disorder() -> None:
    """For any order of arrival within max_disorder, the sequence is that of the sorted log."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        logs = [np.sort(rng.integers(0, 3_000, 60)) for _ in range(2)]
        late = [times[np.argsort(times + rng.integers(0, 50, 60), kind="stable")].tolist() for times in logs]
        streams = tuple(replace_disorder(stream, 50) for stream in (A, B))
        steps = [(int(t), int(n), bool(r)) for t, n, r in rng.integers(0, [2, 9, 2], (30, 3))]
        reader = run(Reader((late[0], late[1]), (streams[0], streams[1])), steps)
        kept = [
            (topic, time) for topic, log in enumerate(late) for row, time in enumerate(log) if row % 5 != 4
        ]
        assert [(time, topic) for topic, _, time in reader.rows] == sorted(
            (time, topic) for topic, time in kept
        )
        assert reader.marks == sorted(time for _, time in kept)


def replace_disorder(stream: Stream, max_disorder_ms: int) -> Stream:
    assert stream.time is not None
    time = EventTime(stream.time, max_disorder=max_disorder_ms)
    return Stream(stream.topic, key=stream.key, time=time, columns=stream.columns)


def test_an_idle_topic_that_speaks_again_comes_after_what_was_released() -> None:
    reader = Reader(([10, 20, 30], [5, 15, 40]))
    reader.step(0, 3)
    reader.merge.resolve([True, True])
    events = reader.merge.release(reader.merge.bound([False, True]))  # b is thought idle
    assert events.mark.tolist() == [10, 20]
    reader.step(1, 3)
    assert reader.marks == [30, 30, 30, 40]
    assert reader.rows == [(1, 0, 5), (1, 1, 15), (0, 2, 30), (1, 2, 40)]
    assert Merge((A, B)).bound([False, False]) == FIRST and Merge((A, B)).bound([True, True]) == LAST
