"""Counts of how often an item was learned before: against a loop, in any batches, across a resume."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import livectr.trainer.quality.seen
from livectr.trainer.quality.seen import COLD, NOT_COUNTED, ItemCounts, is_cold

items = st.sampled_from([0, 1, 2, 3, -5, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(st.lists(items, max_size=12), st.booleans()), max_size=12), st.integers(0, 6))
def test_against_a_loop(batches: list[tuple[list[int], bool]], fresh: int) -> None:
    """Counts are exact for any batches, with a resume after any, and any number of new items."""
    before: Counter[int] = Counter()
    counts = ItemCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(livectr.trainer.quality.seen, "FRESH", fresh)
        for batch, resume in batches:
            expected = []
            for item in batch:
                expected.append(before[item])
                before[item] += 1
            found = counts.seen(np.array(batch, np.int64))
            assert found.dtype == np.uint32 and found.tolist() == expected
            if resume:
                state = counts.state()
                counts = ItemCounts()
                counts.load(state)
    assert len(counts) == len(before)
    state = counts.state()
    assert dict(zip(state["items"].tolist(), state["counts"].tolist(), strict=True)) == before


def test_learned_items_are_looked_up_and_not_counted() -> None:
    counts = ItemCounts()
    assert counts.learned(np.array([7, 7])).tolist() == [0, 0]
    counts.seen(np.array([7, 9, 7, -5]))
    for _ in range(2):
        assert counts.learned(np.array([7, 8, -5, 9, 7, 10])).tolist() == [2, 0, 1, 1, 2, 0]
    assert counts.learned(np.array([], np.int64)).tolist() == []


def test_a_state_is_a_copy() -> None:
    counts = ItemCounts()
    counts.seen(np.array([7, 7]))
    held = counts.state()
    other = ItemCounts()
    other.load(held)
    other.seen(np.array([7]))
    assert held["counts"].tolist() == [2] and counts.seen(np.array([7])).tolist() == [2]


def test_what_is_cold() -> None:
    assert is_cold(np.array([0, COLD - 1, COLD, NOT_COUNTED], np.uint32)).tolist() == [
        True,
        True,
        False,
        False,
    ]
