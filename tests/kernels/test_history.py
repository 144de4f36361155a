"""Behavior histories against a list per user."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from livectr.kernels.stream.history import APPEND, QUERY, Cut, Histories, HistoryTable

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


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=100, deadline=None)
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
