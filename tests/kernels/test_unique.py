"""Unique keys of segments against np.unique."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from livectr.kernels.keys.unique import I64, Unique, unique_segments
from tests.commands import run

INT64 = np.iinfo(np.int64)
SOME = st.one_of(
    st.integers(-3, 3), st.sampled_from([INT64.min, INT64.max]), st.integers(INT64.min, INT64.max)
)


def check(keys: I64, bounds: I64, found: Unique) -> None:
    assert found.bounds[0] == 0 and len(found.bounds) == len(bounds)
    for s in range(len(bounds) - 1):
        segment = keys[bounds[s] : bounds[s + 1]]
        values, first = np.unique(segment, return_index=True)
        unique = found.keys[found.bounds[s] : found.bounds[s + 1]]
        np.testing.assert_array_equal(unique, values[np.argsort(first)])
        np.testing.assert_array_equal(unique[found.index[bounds[s] : bounds[s + 1]]], segment)
    assert len(found.keys) == found.bounds[-1]


def cut(segments: list[list[int]]) -> tuple[I64, I64]:
    keys = np.array([key for segment in segments for key in segment], np.int64)
    return keys, np.cumsum([0, *map(len, segments)])


@given(st.lists(st.lists(SOME, max_size=80), max_size=8))
@example([])
@example([[]])
@example([[], [INT64.min, -1, INT64.min], []])
def test_each_segment_has_its_unique_keys_in_order_of_first_appearance(segments: list[list[int]]) -> None:
    keys, bounds = cut(segments)
    check(keys, bounds, unique_segments(keys, bounds))


@pytest.mark.parametrize("distinct", [1, 300, 1 << 40])
def test_large_segments_of_keys_that_share_their_low_bits(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    sizes = [200_000, 0, 1, 33, 50_000]
    keys = rng.integers(0, distinct, sum(sizes)) << 20
    bounds = np.cumsum([0, *sizes])
    check(keys, bounds, unique_segments(keys, bounds))


def test_any_number_of_threads_gives_the_same() -> None:
    program = (
        "import numpy as np; from livectr.kernels.keys.unique import unique_segments\n"
        "keys = np.random.default_rng(1).zipf(1.2, 26 * 999)\n"
        "found = unique_segments(keys, np.arange(27) * 999)\n"
        "print(*(array.tobytes().hex() for array in (found.keys, found.bounds, found.index)))"
    )
    said = [
        run(
            [sys.executable, "-c", program],
            env=os.environ | {"LIVECTR_THREADS": threads},
            check=True,
            capture_output=True,
        ).stdout
        for threads in ("1", "3")
    ]
    assert len(said[0]) > 26 * 999 and said[0] == said[1]


@pytest.mark.parametrize("bounds", [[], [1, 3], [0, 2], [0, 2, 1, 3], [0, 4]])
def test_bounds_that_do_not_fit_the_keys(bounds: list[int]) -> None:
    with pytest.raises(ValueError, match="rise from 0 to the number of keys, 3"):
        unique_segments(np.arange(3), np.array(bounds, np.int64))


def test_keys_are_never_read_from_floats() -> None:
    with pytest.raises(ValueError, match="int64"):
        unique_segments(np.zeros(3), np.array([0, 3]))  # type: ignore[arg-type]
