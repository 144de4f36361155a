"""Windowed counters against a list of events."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream.counters import CounterTable, Rows
from tests.tiers import examples

GRAIN, SPANS, LAG = 10, (6, 18), 3
FINE = 6 + LAG + 1
Event = tuple[int, int, bool, bool]
"""key, time since the event before, impression, click"""
EVENTS = st.lists(
    st.tuples(
        st.integers(-1, 3), st.sampled_from([0, 1, 7, 25, 130, 900, 4000]), st.booleans(), st.booleans()
    ),
    max_size=120,
)


def table(max_bytes: int = 1 << 60) -> CounterTable:
    return CounterTable(GRAIN, FINE, SPANS, max_bytes=max_bytes)


def push(counters: CounterTable, events: Sequence[Event], since: int = 0) -> Rows:
    key = np.array([event[0] for event in events], np.int64)
    time = since + np.cumsum([event[1] for event in events], dtype=np.int64)
    shown, clicked = (np.array([event[i] for event in events], np.uint8) for i in (2, 3))
    return counters.push(key, time, shown, clicked, np.ones(len(events), np.uint8))


def varint(row: bytes, at: int) -> tuple[int, int]:
    n = shift = 0
    while True:
        n |= (row[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if row[at - 1] < 128:
            return n, at


def window(row: bytes, ts: int, ring: int) -> tuple[int, int]:
    """Impressions and clicks of a window as of a time."""
    span = (1, *SPANS)[ring]
    if not row:
        return 0, 0
    head, end, first = (
        int.from_bytes(row[:8], "little"),
        ts // GRAIN,
        (ts - 6 * span * GRAIN) // GRAIN // span,
    )
    total, at = [0, 0], 8
    while at < len(row):
        of, age = row[at : at + 2]
        shown, at = varint(row, at + 2)
        clicked, at = varint(row, at)
        grain = head - age if of == 0 else (head // span - age) * span
        if of in (0, ring) and grain // span >= first and grain < end:
            total[0] += shown
            total[1] += clicked
    return total[0], total[1]


def windows(rows: Rows, times: Sequence[int]) -> list[list[tuple[int, int]]]:
    return [
        [window(row, ts, ring) for ring in range(len(SPANS) + 1)]
        for row, ts in zip(rows.texts(), times, strict=True)
    ]


def expected(events: Sequence[Event], lag: int) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """Windows as of `lag` ms before each event, of the events that were known by then."""
    known: dict[int, list[tuple[int, bool, bool]]] = defaultdict(list)
    found, times, now = [], [], 0
    for key, passed, shown, clicked in events:
        now += passed
        ts, row = now - lag, []
        for span in (1, *SPANS):
            width = span * GRAIN
            begin, end = (ts - 6 * width) // width * width, ts // GRAIN * GRAIN
            seen = [event for event in known[key] if begin <= event[0] < end]
            row.append((sum(s for _, s, _ in seen), sum(c for _, _, c in seen)))
        found.append(row)
        times.append(ts)
        known[key].append((now, shown, clicked))
    return found, times


@examples(300)
@given(EVENTS, st.integers(0, LAG * GRAIN), st.integers(0, 120))
def test_equals_a_list_of_events_in_any_chunking(events: list[Event], lag: int, cut: int) -> None:
    answers, times = expected(events, lag)
    assert windows(push(table(), events), times) == answers
    first, restored = table(), table()
    before = windows(push(first, events[:cut]), times[:cut])
    restored.assign(first.export())
    since = sum(event[1] for event in events[:cut])
    assert before + windows(push(restored, events[cut:], since), times[cut:]) == answers
    whole = table()
    push(whole, events)
    for mine, other in zip(whole.export(), restored.export(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert (whole.bytes, len(whole)) == (restored.bytes, len(restored))


def test_cells_grow_with_their_counts() -> None:
    for count in (300, 70_000):
        counters = table()
        push(counters, [(5, 0, True, i % 2 == 0) for i in range(count)])
        (row,) = push(counters, [(5, 30, False, False)], 0).texts()
        assert [window(row, 30, ring) for ring in range(3)] == [(count, count // 2)] * 3
        (row,) = push(counters, [(5, 600, True, False)], 30).texts()  # read before it is counted
        _, rows = counters.changed()
        assert window(rows.texts()[0], 640, 2) == (count + 1, count // 2)  # folded into the ring of 3 minutes
        assert window(rows.texts()[0], 640, 0) == (1, 0)


def test_the_longest_not_counted_leave() -> None:
    counters = table()
    counters.track()
    push(counters, [(key, 0, True, False) for key in (1, 2, 3, 1)])
    mark = counters.mark()
    each = counters.bytes // 3
    small = table(max_bytes=2 * each)
    small.track()
    before = small.mark()
    push(small, [(key, 0, True, False) for key in (1, 2, 3, 1, 4)])
    keys, rows = small.changed(before)
    assert (len(small), small.evicted, small.bytes) == (2, 3, 2 * each)
    assert {key: bool(row) for key, row in zip(keys.tolist(), rows.texts(), strict=True)} == {
        4: True, 1: True, 2: False, 3: False,
    }  # fmt: skip
    push(counters, [(9, 8 * 18 * GRAIN + FINE * GRAIN + GRAIN, False, True)])
    keys, rows = counters.changed(mark)
    assert (len(counters), counters.expired, counters.listed) == (1, 3, 3)
    assert keys[0] == 9
    assert sorted(keys.tolist()) == [1, 2, 3, 9]
    counters.forget_left(counters.mark())
    assert counters.listed == 0


def test_saved_counters_of_other_windows_are_refused() -> None:
    counters = table()
    push(counters, [(1, 0, True, False)])
    other = CounterTable(GRAIN, FINE + 1, SPANS)
    try:
        other.assign(counters.export())
    except ValueError as error:
        assert "other windows" in str(error)
    else:
        raise AssertionError("they were taken")
