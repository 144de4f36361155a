"""Wrong clocks: a device's wrong time changes no label but its own."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.dead_letters.letters import Reason
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.clock import VOICES, Horizon, judge, new_clock
from tests.ingest.joined_logs import Log
from tests.ingest.partition_reader import Reader
from tests.ingest.quiet_hour import HOUR_MS, START_MS, logs, pipeline
from tests.tiers import examples

WRONG = (
    *(lambda t, by=by: t + by for by in (61_000, HOUR_MS, 23 * HOUR_MS, 400 * 24 * HOUR_MS)),
    *(lambda t, by=by: t - by for by in (61_000, HOUR_MS, 400 * 24 * HOUR_MS)),
    lambda t: t // 1000,
    lambda t: t * 1000,
    lambda t: 0,
    lambda t: 2**63 - 1,
    lambda t: -(2**63),
)
"""Ahead, behind, seconds or microseconds for milliseconds, 1970, and times that are none."""


def labels(
    pipe: Pipeline, log: list[Log], steps: list[tuple[int, int, bool]]
) -> tuple[dict[int, float], Reader]:
    """Instance → label."""
    reader = Reader(pipe, log)
    for topic, count, restart in steps:
        reader.step(topic, count)
        reader.pop(1 << 30)
        if restart:
            reader.restart()
    rows = reader.rest()
    assert len({row[4] for row in rows}) == len(rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    return {instance: label for _, label, _, _, instance, _ in rows}, reader


def test_events_that_the_join_sets_aside_are_counted_with_their_topic() -> None:
    """A whole input of which more than a hundredth is set aside is no success, whoever does it."""
    log = logs(3)
    for row in range(0, len(log[0]), 30):
        log[0][row] = dict(log[0][row], ts=log[0][row]["ts"] + 400 * 24 * HOUR_MS)
    _, reader = labels(pipeline(), log, [(0, 50, False), (1, 9, False)])
    letters = reader.letters.counts[Reason.BAD_TIME.value]
    counted = reader.letters.rows.topics()["impressions"]
    assert letters > 0 and counted.unusable == letters
    assert counted.commonest == "`ts` is no time near those of the log"


STEPS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 80), st.booleans()), max_size=10)
BAD = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1000), st.sampled_from(WRONG)), max_size=8)


@examples(60)
@given(st.integers(0, 100), BAD, STEPS)
def test_k_wrong_clocks_change_at_most_k_labels(
    seed: int, bad: list[tuple[int, int, Callable[[int], int]]], steps: list[tuple[int, int, bool]]
) -> None:
    log = logs(seed)
    right, _ = labels(pipeline(), log, [])
    assert sum(right.values()) == len(log[1])
    wrong = set()
    for topic, place, clock in bad:
        row = place % len(log[topic])
        if (topic, row) not in wrong:
            wrong.add((topic, row))
            log[topic][row] = dict(log[topic][row], ts=clock(log[topic][row]["ts"]))
    found, _ = labels(pipeline(), log, steps)
    assert sum(found.get(instance) != label for instance, label in right.items()) <= len(wrong)
    assert found.keys() <= right.keys()
    assert found == labels(pipeline(), log, [])[0]


@examples(30)
@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1000), st.integers(-200_000, 200_000)), max_size=8),
)
def test_with_twice_as_much_disorder_as_is_believed_no_clock_is_too_little_wrong(
    seed: int, bad: list[tuple[int, int, Callable[[int], int]]]
) -> None:
    """With max_disorder = 2 max_ahead, clocks may be wrong by any amount once the log has its first users."""
    pipe = pipeline(120_000)
    log = logs(seed)
    right, _ = labels(pipe, log, [])
    assert right == labels(pipeline(), log, [])[0]
    wrong = set()
    for topic, place, by in bad:
        row = 60 + place % (len(log[topic]) - 60)
        if (topic, row) not in wrong:
            wrong.add((topic, row))
            log[topic][row] = dict(log[topic][row], ts=log[topic][row]["ts"] + by)
    found, _ = labels(pipe, log, [])
    assert sum(found.get(instance) != label for instance, label in right.items()) <= len(wrong)


@pytest.mark.parametrize("users", [1, 8])
@pytest.mark.parametrize("topic", [0, 1])
@pytest.mark.parametrize("row", [0, 30, 120])
@pytest.mark.parametrize("ahead_ms", [HOUR_MS, 23 * HOUR_MS])
def test_eight_wrong_records_in_a_row_move_nothing(users: int, topic: int, row: int, ahead_ms: int) -> None:
    log = logs(3)
    right, _ = labels(pipeline(), log, [])
    for i in range(8):
        place = log[topic][row + i]
        log[topic][row + i] = dict(place, ts=place["ts"] + ahead_ms + i, user_id=1000 + i % users)
    found, reader = labels(pipeline(), log, [])
    assert sum(found.get(instance) != label for instance, label in right.items()) <= 8
    assert reader.letters.counts["bad_time"] == 8


def judged(ts: np.ndarray, users: np.ndarray, *, ended: bool = True) -> tuple[list[int], list[int]]:
    times, horizon = ts.astype(np.int64), Horizon(ended=ended)
    found = judge(new_clock(), times, users.astype(np.int64), max_ahead_ms=60_000, horizon=horizon)
    return found.mark.tolist(), found.verdict.tolist()


def test_a_user_alone_moves_the_mark_by_little_and_a_gap_is_no_error() -> None:
    # One user who runs ahead, a minute with each record, beside thirty who do not.
    users = np.arange(2000) % 40
    ts = START_MS + np.arange(2000) * 10
    runs = users == 7
    true = ts.copy()
    ts[runs] += 59_000 * np.arange(1, runs.sum() + 1)
    marks, verdict = judged(ts, users)
    assert max(np.array(marks) - true) <= 60_000
    assert set(np.array(verdict)[~runs]) == {0}
    # One user is all there is, or the log jumps: nothing is lost, and the marks are the times.
    for step in (1_000, 10 * HOUR_MS):
        ts = START_MS + np.arange(500) * step
        for users in (np.zeros(500, np.int64), np.arange(500) % 3, np.arange(500)):
            assert judged(ts, users) == (ts.tolist(), [0] * 500)


def test_no_more_than_so_many_records_wait() -> None:
    """An unconfirmed record is judged after records of nine users, or after VOICES records of fewer."""
    ts = START_MS + np.arange(VOICES + 2) + np.where(np.arange(VOICES + 2) > 0, HOUR_MS, 0)
    for users in (np.zeros(len(ts)), np.arange(len(ts)) % 2):
        assert len(judged(ts[: VOICES + 1], users[: VOICES + 1], ended=False)[0]) < VOICES + 1
        assert len(judged(ts, users, ended=False)[0]) >= 1
    waits = [len(judged(ts[:n], np.arange(n), ended=False)[0]) for n in (9, 10, 11)]
    assert waits == [0, 1, 2]


def test_records_that_come_late_keep_their_labels_within_the_disorder() -> None:
    """Disorder of five seconds with a window of two seconds: no label is lost if the stream allows it."""
    rng = np.random.default_rng(5)
    log = logs(5, rows=2000)
    right, _ = labels(pipeline(), log, [])
    shuffled = [
        [rows[i] for i in np.argsort([row["ts"] + rng.integers(0, 5_000) for row in rows], kind="stable")]
        for rows in log
    ]
    steps = [(topic, 150, restart) for restart in (True, False) for topic in (1, 0, 0, 1)]
    assert labels(pipeline(5_000), shuffled, steps)[0] == right
    lost = sum(right.values()) - sum(labels(pipeline(), shuffled, [])[0].values())
    assert lost > 300  # the log is as bad as that
