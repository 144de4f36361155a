"""Ages of keys against a list of events."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream.counters import AgeTable
from tests.tiers import examples

GRAIN, LAG, WITHIN = 10, 6, 500
Event = tuple[int, int, int, bool, bool]
"""key, time since the event before, time until it is known, impression, click"""
EVENTS = st.lists(
    st.tuples(
        st.integers(-1, 2),
        st.sampled_from([0, 1, 3, 7, 25, 130, 900, 9000]),
        st.integers(0, 60),
        st.booleans(),
        st.booleans(),
    ),
    max_size=150,
)


def table(max_bytes: int = 1 << 60) -> AgeTable:
    return AgeTable(GRAIN, LAG, WITHIN, max_bytes=max_bytes)


def push(ages: AgeTable, events: Sequence[Event], since: int = 0) -> list[bytes]:
    key = np.array([event[0] for event in events], np.int64)
    known = since + np.cumsum([event[1] for event in events], dtype=np.int64)
    time = known - np.array([event[2] for event in events], np.int64)
    shown, clicked = (np.array([event[i] for event in events], np.uint8) for i in (3, 4))
    return ages.push(key, known, shown, clicked, np.ones(len(events), np.uint8), time).texts()


def last(row: bytes, ts: int, kind: int) -> int | None:
    """Time of the last event of a kind that was known before the grain of a time, if not too old."""
    entries = np.frombuffer(row, np.int64).tolist()
    times = [
        e >> 17 for e in entries if e >> 1 & 1 == kind and (e >> 17) // GRAIN + (e >> 2 & 32767) < ts // GRAIN
    ]
    return max((time for time in times if ts - time <= WITHIN * GRAIN), default=None)


def answers(rows: Sequence[bytes], times: Sequence[int]) -> list[list[int | None]]:
    return [[last(row, ts, kind) for kind in (0, 1)] for row, ts in zip(rows, times, strict=True)]


def expected(events: Sequence[Event], lag: int) -> tuple[list[list[int | None]], list[int]]:
    """Last events as of `lag` ms before each event, of those that were known by then."""
    known: list[tuple[int, int, int, tuple[bool, bool]]] = []
    found, times, now = [], [], 0
    for key, passed, wait, *marks in events:
        now += passed
        ts = now - lag
        seen = [(time, m) for k, at, time, m in known if k == key and at // GRAIN < ts // GRAIN]
        seen = [(time, m) for time, m in seen if ts - time <= WITHIN * GRAIN]
        found.append([max((time for time, m in seen if m[kind]), default=None) for kind in (0, 1)])
        times.append(ts)
        known.append((key, now, now - wait, (marks[0], marks[1])))
    return found, times


@examples(300)
@given(EVENTS, st.integers(0, LAG * GRAIN), st.integers(0, 150))
def test_equals_a_list_of_events_in_any_chunking(events: list[Event], lag: int, cut: int) -> None:
    want, times = expected(events, lag)
    whole = table()
    rows = push(whole, events)
    assert answers(rows, times) == want
    assert all(len(row) <= 8 * 16 for row in rows)
    first, restored = table(), table()
    before = push(first, events[:cut])
    restored.assign(first.export())
    since = sum(event[1] for event in events[:cut])
    assert before + push(restored, events[cut:], since) == rows
    for mine, other in zip(whole.export(), restored.export(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert (whole.bytes, len(whole)) == (restored.bytes, len(restored))


def test_keys_leave_by_age_and_by_bytes() -> None:
    ages = table()
    push(ages, [(key, 0, 0, True, False) for key in (1, 2, 3, 1)])
    each = ages.bytes // 3
    assert each == 64 + 8, "an entry for a kind"
    small = table(max_bytes=2 * each)
    push(small, [(key, 0, 0, True, False) for key in (1, 2, 3)])
    assert (len(small), small.evicted, small.bytes) == (2, 1, 2 * each)
    push(ages, [(9, (WITHIN + LAG + 2) * GRAIN, 0, False, True)])
    assert (len(ages), ages.expired) == (1, 3)


def test_a_busy_key_has_a_bounded_row() -> None:
    ages = table()
    push(ages, [(5, 1, 60, True, True)] * 10_000)
    assert ages.bytes == 64 + 8 * 16
    push(ages, [(5, LAG * GRAIN * 2, 0, True, True)], since=10_000)
    assert ages.bytes == 64 + 8 * 4, "what no time of the lag sees is left out"
