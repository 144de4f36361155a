"""Behavior histories against a list per user."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream.history import APPEND, QUERY, Cut, Histories, HistoryTable
from tests.tiers import examples

N = 5
CUTS = [Cut(5, 60), Cut(2, 1000), Cut(3, 0)]
Event = tuple[int, int, int, int]
"""kind, user, item, ts"""
EVENTS = st.lists(
    st.tuples(st.sampled_from([QUERY, APPEND]), st.integers(-2, 4), st.integers(0, 9), st.integers(0, 100)),
    max_size=100,
)


def brute_force(events: Sequence[Event]) -> list[list[list[int]]]:
    kept: dict[int, list[tuple[int, int]]] = {}
    answers: list[list[list[int]]] = [[] for _ in CUTS]
    for kind, user, item, ts in events:
        if kind == APPEND:
            arrived = [*kept.get(user, []), (ts, item)]
            kept[user] = sorted(arrived, key=lambda entry: entry[0])[-N:]
            continue
        for cut, answer in zip(CUTS, answers, strict=True):
            seen = [item for t, item in kept.get(user, []) if t <= ts and ts - t <= cut.within_ms]
            answer.append(seen[-cut.limit :])
    return answers


def push(table: HistoryTable, events: Sequence[Event]) -> list[list[list[int]]]:
    kind, user, item, ts = (np.array([event[i] for event in events], np.int64) for i in range(4))
    return [
        [items[a:b].tolist() for a, b in pairwise(offsets)]
        for offsets, items in table.push(kind.astype(np.uint8), user, item, ts, CUTS)
    ]


def equal(a: Histories, b: Histories) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in Histories._fields)


@examples(200)
@given(EVENTS, st.integers(0, 100))
def test_equals_a_list_per_user_in_any_chunking(events: list[Event], cut: int) -> None:
    expected = brute_force(events)
    assert push(HistoryTable(N), events) == expected
    table = HistoryTable(N)
    first = push(table, events[:cut])
    restored = HistoryTable(N)
    restored.assign(table.export())
    assert equal(table.export(), restored.export())
    second = push(restored, events[cut:])
    assert [a + b for a, b in zip(first, second, strict=True)] == expected


@examples(100)
@given(st.lists(EVENTS, min_size=1, max_size=5))
def test_changes_since_a_mark_make_a_copy_whole(parts: list[list[Event]]) -> None:
    table, copy, since = HistoryTable(N), HistoryTable(N), 0
    for events in parts:
        push(table, events)
        changed = table.export(since)
        assert set(changed.users) >= {user for kind, user, _, _ in events if kind == APPEND}
        copy.assign(changed)
        since = table.mark()
        assert len(table.export(since).users) == 0
    assert equal(table.export(), copy.export())


@examples(150)
@given(st.lists(EVENTS, min_size=1, max_size=6), st.integers(0, 60), st.integers(1, 4), st.integers(0, 3))
def test_changes_name_the_users_that_left(
    parts: list[list[Event]], horizon_ms: int, users: int, told: int
) -> None:
    """A copy that drops users of length 0 stays equal, although the list is forgotten up to a mark."""
    table = HistoryTable(N, horizon_ms=horizon_ms, max_bytes=users * (128 + 16 * 8))
    table.track()
    copy: dict[int, list[tuple[int, int]]] = {}
    since, mark, marks = 0, 0, [0]
    for events in parts:
        moments = [mark := max(mark, event[3]) for event in events]
        push_marked(table, events, moments)
        changed = table.export(since)
        assert np.all(np.diff(changed.users) > 0)
        copy |= histories_of(changed)
        copy = {user: history for user, history in copy.items() if history}
        assert copy == histories_of(table.export())
        since = table.mark()
        marks.append(since)
        table.forget_left(marks[max(0, len(marks) - 1 - told)])
    table.forget_left(since)
    assert table.listed == 0


def histories_of(histories: Histories) -> dict[int, list[tuple[int, int]]]:
    ends = np.cumsum(histories.lengths).tolist()
    pairs = list(zip(histories.items.tolist(), histories.ts.tolist(), strict=True))
    return {
        user: pairs[end - n : end]
        for user, end, n in zip(histories.users.tolist(), ends, histories.lengths.tolist(), strict=True)
    }


class Bounded:
    """Brute-force reference: the users that expiry and a budget have left, their clicks and bytes."""

    def __init__(self, horizon_ms: int, max_bytes: int) -> None:
        self.horizon_ms, self.max_bytes = horizon_ms, max_bytes
        self.kept: dict[int, list[tuple[int, int]]] = {}
        self.expired = self.evicted = 0

    def bytes(self) -> int:
        rooms = [min(N, next(2**k for k in range(2, 9) if 2**k >= len(v))) for v in self.kept.values()]
        return sum(128 + 16 * room for room in rooms)

    def expire(self, oldest: int) -> None:
        gone = [user for user, clicks in self.kept.items() if max(clicks)[0] < oldest]
        self.expired += len(gone)
        for user in gone:
            del self.kept[user]

    def append(self, user: int, item: int, ts: int, oldest: int) -> None:
        self.expire(oldest)
        if ts >= oldest:
            known = self.kept.get(user, [])
            arrived = [*(click for click in known if click[0] >= oldest), (ts, item)]
            self.kept[user] = sorted(arrived, key=lambda entry: entry[0])[-N:]
        while self.bytes() > self.max_bytes and len(self.kept) > 1:
            _, user = min((max(clicks)[0], user) for user, clicks in self.kept.items())
            del self.kept[user]
            self.evicted += 1

    def query(self, user: int, ts: int, cut: Cut, oldest: int) -> list[int]:
        clicks = self.kept.get(user, [])
        return [item for t, item in clicks if oldest <= t <= ts and ts - t <= cut.within_ms][-cut.limit :]


def marked(events: Sequence[Event]) -> list[int]:
    """Event time of the sequence: the running maximum."""
    return np.maximum.accumulate([ts for _, _, _, ts in events]).tolist() if events else []


def push_marked(table: HistoryTable, events: Sequence[Event], marks: Sequence[int]) -> list[list[list[int]]]:
    kind, user, item, ts = (np.array([event[i] for event in events], np.int64) for i in range(4))
    answers = table.push(kind.astype(np.uint8), user, item, ts, CUTS, mark=np.array(marks, np.int64))
    return [[items[a:b].tolist() for a, b in pairwise(offsets)] for offsets, items in answers]


@examples(300)
@given(EVENTS, st.integers(0, 100), st.integers(0, 60), st.sampled_from([300, 500, 700, 10**6]))
def test_expiry_and_budget_equal_a_list_per_user_over_a_restart(
    events: list[Event], cut: int, horizon_ms: int, max_bytes: int
) -> None:
    marks, reference = marked(events), Bounded(horizon_ms, max_bytes)
    expected: list[list[list[int]]] = [[] for _ in CUTS]
    for (kind, user, item, ts), mark in zip(events, marks, strict=True):
        if kind == APPEND:
            reference.append(user, item, ts, mark - horizon_ms)
        else:
            for limits, answers in zip(CUTS, expected, strict=True):
                answers.append(reference.query(user, ts, limits, mark - horizon_ms))
    if marks:
        reference.expire(marks[-1] - horizon_ms)
    whole = HistoryTable(N, horizon_ms=horizon_ms, max_bytes=max_bytes)
    assert push_marked(whole, events, marks) == expected
    assert (whole.expired, whole.evicted) == (reference.expired, reference.evicted)
    assert (len(whole), whole.bytes) == (len(reference.kept), reference.bytes())
    assert whole.export().users.tolist() == sorted(reference.kept)
    first = HistoryTable(N, horizon_ms=horizon_ms, max_bytes=max_bytes)
    begun = push_marked(first, events[:cut], marks[:cut])
    restored = HistoryTable(N, horizon_ms=horizon_ms, max_bytes=max_bytes)
    restored.assign(first.export())
    assert restored.bytes == first.bytes
    more = push_marked(restored, events[cut:], marks[cut:])
    assert [a + b for a, b in zip(begun, more, strict=True)] == expected
    assert equal(restored.export(), whole.export())


@examples(300)
@given(EVENTS, st.integers(0, 30))
def test_a_horizon_that_covers_within_changes_no_answer(events: list[Event], slack_ms: int) -> None:
    """Records are late by at most the slack."""
    marks = marked(events)
    events = [(k, u, i, max(ts, mark - slack_ms)) for (k, u, i, ts), mark in zip(events, marks, strict=True)]
    within = [Cut(5, 20), Cut(2, 10)]
    kind, user, item, ts = (np.array([event[i] for event in events], np.int64) for i in range(4))
    args = kind.astype(np.uint8), user, item, ts, within
    bounded = HistoryTable(N, horizon_ms=20 + slack_ms).push(*args, mark=np.array(marks, np.int64))
    for (offsets, items), (other, same) in zip(HistoryTable(N).push(*args), bounded, strict=True):
        assert offsets.tolist() == other.tolist() and items.tolist() == same.tolist()


def test_users_who_come_once_leave() -> None:
    table = HistoryTable(N, horizon_ms=1000)
    sizes = []
    for start in range(0, 200_000, 10_000):
        user = np.arange(start, start + 10_000)
        table.push(np.full(10_000, APPEND, np.uint8), user, user, user, [], mark=user)
        sizes.append((len(table), table.bytes))
    assert set(sizes) == {(1001, 1001 * (128 + 4 * 16))}
    assert table.expired == 200_000 - 1001
