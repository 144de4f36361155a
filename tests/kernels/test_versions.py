"""Versions of rows against a scan of all of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream import versions
from livectr.kernels.stream.versions import BEFORE_ALL, NO_ROW, RowVersions
from tests.tiers import examples

PUTS = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 20), st.booleans()), max_size=12), max_size=12
)


def scanned(puts: list[tuple[int, int, int]], number: int, time: int) -> int:
    """Row of a key at a time: the last put of the greatest time that is not later."""
    found = [(t, place, row) for place, (n, t, row) in enumerate(puts) if n == number and t <= time]
    return max(found)[2] if found else NO_ROW


@examples(300)
@given(PUTS, st.lists(st.integers(-25, 25), max_size=12), st.sampled_from([0, 2, 4096]))
def test_equal_a_scan_of_all_puts(
    batches: list[list[tuple[int, int, bool]]], horizons: list[int], small: int
) -> None:
    kept, versions.SMALL = versions.SMALL, small
    try:
        rows, horizon = RowVersions(), BEFORE_ALL
        puts: list[tuple[int, int, int]] = []
        for step, batch in enumerate(batches):
            fresh = [(n, t, NO_ROW if gone else len(puts) + i) for i, (n, t, gone) in enumerate(batch)]
            puts += fresh
            rows.put(*(np.array([put[c] for put in fresh], np.int64) for c in range(3)))
            if step < len(horizons):
                horizon = max(horizon, horizons[step])
                rows.forget(horizon, at_once=step % 2 == 0)
            if step % 3 == 2:  # rows keep their order
                old = rows.rows()
                rows.renumber(old)
                puts = [(n, t, int(np.searchsorted(old, row)) if row in old else -9) for n, t, row in puts]
                puts = [(n, t, NO_ROW if row == -9 else row) for n, t, row in puts]
            asked = [(n, t) for n in range(8) for t in range(max(-25, horizon), 26)]
            numbers, times = (np.array(column, np.int64) for column in zip(*asked, strict=True))
            expected = [scanned(puts, n, t) for n, t in asked]
            assert rows.at(numbers, times)[0].tolist() == expected
    finally:
        versions.SMALL = kept


def test_only_what_can_be_found_stays() -> None:
    rows = RowVersions()
    times = np.arange(10_000)
    rows.put(times % 10, times, times)
    assert rows.older == 9_990
    assert not rows.forget(-1)
    assert not rows.forget(3_000)  # few, so later
    assert rows.forget(5_000, at_once=True)
    assert 4_980 <= rows.older <= 5_000
    assert rows.forget(20_000, at_once=True) and rows.older == 0
    assert rows.at(np.array([3, 4, 11]), np.array([20_000, 20_000, 20_000]))[0].tolist() == [
        9_993,
        9_994,
        NO_ROW,
    ]
