"""Byte budget of rows against a loop over all of them, however they arrive."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.kernels.stream import row_budget
from livectr.kernels.stream.clock import LAST
from livectr.kernels.stream.row_budget import RowBudget, Rows
from tests.tiers import examples

KEYS = np.array([50, 10, 40, 20, 30, 60])  # key of each number
Row = tuple[int, int, int]
"""Number, time, bytes."""


def brute_force(rows: list[Row], max_bytes: int, max_age: int | None) -> list[tuple[int, int, int]]:
    """(time from which on, time, key) of each key that leaves."""
    live: dict[int, tuple[int, int, int]] = {}
    found = []
    for number, time, size in sorted(rows, key=lambda row: (row[1], KEYS[row[0]])):
        live[number] = (time, int(KEYS[number]), size)
        if sum(size for *_, size in live.values()) <= max_bytes:
            continue
        if max_age is not None:
            live = {n: row for n, row in live.items() if row[0] > time - max_age}
        if sum(size for *_, size in live.values()) <= max_bytes:
            continue
        while sum(s for *_, s in live.values()) > max_bytes // 16 * 15:
            if sum(s > 0 for *_, s in live.values()) <= 1:
                break
            oldest = min((n for n in live if live[n][2]), key=lambda n: live[n])
            found.append((time, *live.pop(oldest)[:2]))
    return found


def gone(cuts: list[tuple[int, int, int]], key: int, since: int, at: int) -> bool:
    return any(begin <= at and (since, key) <= (time, last) for begin, time, last in cuts)


def columns(rows: list[Row]) -> Rows:
    return Rows(*(np.array([row[c] for row in rows], np.int64) for c in range(3)))


@pytest.mark.parametrize("max_age", [None, 9])
@examples(300)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 60)), max_size=10), max_size=8
    ),
    ahead=st.integers(0, 15),
    max_bytes=st.sampled_from([1, 64, 100, 160]),
    size=st.sampled_from([1, 3, 4096]),
    restart=st.integers(0, 8),
)
def test_equals_a_loop_over_all_rows(
    max_age: int | None,
    batches: list[list[Row]],
    ahead: int,
    max_bytes: int,
    size: int,
    restart: int,
) -> None:
    """Rows come before the clock reaches them, some of them long before."""
    kept, row_budget.SLICE = row_budget.SLICE, size
    try:
        budget, clock, rows = RowBudget(max_bytes, max_age), 0, list[Row]()
        for step, batch in enumerate(batches):
            fresh = [(n, clock + 1 + after + ahead * (after % 3), bytes_) for n, after, bytes_ in batch]
            rows += fresh
            budget.put(columns(fresh))
            clock += 4
            budget.advance(clock, KEYS)
            if step == restart:
                budget = resumed(budget, rows, max_bytes, max_age)
            cuts = brute_force([row for row in rows if row[1] <= clock], max_bytes, max_age)
            horizon = max(0, clock - 6)
            budget.forget(horizon)
            for at in range(horizon, clock + 1):
                since = np.arange(clock + 1)
                for key in KEYS.tolist():
                    found = budget.gone(np.full(clock + 1, key), since, np.full(clock + 1, at))
                    assert found.tolist() == [gone(cuts, key, s, at) for s in since.tolist()]
    finally:
        row_budget.SLICE = kept


def resumed(budget: RowBudget, rows: list[Row], max_bytes: int, max_age: int | None) -> RowBudget:
    """Budget of a process that reads all rows again."""
    again = RowBudget(max_bytes, max_age)
    again.restore(json.loads(json.dumps(budget.bounds)))
    newest = {}
    for number, time, size in sorted((row for row in rows if row[1] <= again.clock), key=lambda row: row[1]):
        left = again.gone(KEYS[[number]], np.array([time]), LAST)[0]
        newest[number] = (number, time, 0 if left else size)
    again.fill(columns(list(newest.values())), columns([row for row in rows if row[1] > again.clock]))
    return again


def test_numbers_may_change() -> None:
    budget = RowBudget(100)
    budget.put(columns([(0, 1, 40), (2, 2, 40), (5, 3, 40), (4, 9, 40)]))
    budget.advance(3, KEYS)
    assert budget.gone(KEYS[[0, 2]], np.array([1, 2]), 3).tolist() == [True, False]
    budget.put(columns([(0, 3, 99)]))  # a late row of a key that is dropped before it is looked at
    budget.keep(np.array([2, 4, 5]))
    keys = KEYS[[2, 4, 5]]
    budget.put(columns([(2, 10, 41)]))
    budget.advance(10, keys)
    assert budget.gone(keys, np.array([2, 9, 10]), 9).tolist() == [True, False, False]
    assert budget.gone(keys, np.array([2, 9, 10]), 8).tolist() == [False] * 3


def test_a_row_that_comes_after_it_left_is_told() -> None:
    budget = RowBudget(100)
    budget.put(columns([(n, n, 40) for n in range(6)]))
    budget.advance(9, KEYS)
    assert budget.forget(9) == 3
    assert budget.forget(9) is None
    budget.put(columns([(0, 2, 10)]))
    assert budget.forget(9) == 3


def test_many_rows_cost_little() -> None:
    budget, keys = RowBudget(64 * 10_000), np.arange(200_000)
    for start in range(0, 200_000, 1000):
        numbers = np.arange(start, start + 1000)
        budget.put(Rows(numbers, numbers, np.full(1000, 64)))
        budget.advance(start + 999, keys)
        budget.forget(start)
    assert budget.gone(keys, keys, LAST).sum() == pytest.approx(190_000, abs=10_000 // 16 + 1)


def test_keys_that_are_dropped_count_no_longer() -> None:
    """Rows that are too old count until there is no room, unless their keys are dropped before."""
    budget = RowBudget(100, 5)
    budget.put(columns([(0, 1, 40), (2, 20, 40)]))
    budget.advance(20, KEYS)
    budget.keep(np.array([2]))
    keys = KEYS[[2, 3]]
    budget.put(columns([(1, 21, 50)]))
    budget.advance(21, keys)
    assert budget.gone(keys, np.array([20, 21]), 21).tolist() == [False, False]
