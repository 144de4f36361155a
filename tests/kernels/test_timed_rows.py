"""Rows of look-up tables by time."""

from __future__ import annotations

import numpy as np

from livectr.kernels.stream.timed_rows import TimedRows

MAX_AGE_MS, ROWS = 1_600, 400


def kept(horizons: list[int]) -> set[int]:
    """Keys, a row of each every 10 ms, that are left after some horizons."""
    keys = np.arange(ROWS)
    rows = TimedRows(MAX_AGE_MS)
    rows.put(keys, 10 * keys, keys)
    for horizon in horizons:
        rows.horizon = horizon
        rows.end(horizon, keys)
    found, _ = rows.at(keys, np.full(ROWS, 10 * ROWS))
    return set(np.flatnonzero(found >= 0).tolist())


def test_old_rows_leave_alike_wherever_a_process_began() -> None:
    """A restart at any moment keeps the rows that an unbroken run keeps, and so does Redis."""
    whole = kept([1_000, 1_990, 2_060, 2_500, 2_777])
    assert whole == kept([2_410, 2_777]) == kept([2_777]) == set(range((2_700 - MAX_AGE_MS) // 10 + 1, ROWS))
