"""Rows of several arrays side by side, as NumPy gathers them."""

import numpy as np
import numpy.typing as npt
import pytest

from livectr.kernels.runtime.gather import add_rows, gather_rows


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize(
    ("width", "dtype"), [(1, np.float16), (6, np.float16), (4096, np.float16), (3, np.int64)]
)
def test_rows(monkeypatch: pytest.MonkeyPatch, threads: str, width: int, dtype: npt.DTypeLike) -> None:
    monkeypatch.setenv("LIVECTR_THREADS", threads)
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 999, (size, width)).astype(dtype) for size in (5, 1, 40)]
    source = rng.integers(-1, 3, 1000).astype(np.int32)
    row = np.array([rng.integers(len(sources[one])) if one >= 0 else -7 for one in source], np.int32)
    out = np.full((1000, width), 7, dtype)
    gather_rows(sources, source, row, out)
    for i in range(1000):
        wanted = sources[source[i]][row[i]] if source[i] >= 0 else np.zeros(width, dtype)
        np.testing.assert_array_equal(out[i], wanted)


def test_nothing() -> None:
    none = np.empty(0, np.int32)
    gather_rows([], none, none, np.empty((0, 4), np.float16))
    out = np.ones((2, 4), np.float16)
    gather_rows([], np.array([-1, -1], np.int32), np.zeros(2, np.int32), out)
    assert not out.any()


def test_what_is_not_there() -> None:
    source, out = np.zeros((3, 4), np.float16), np.empty((1, 4), np.float16)
    at = np.zeros(1, np.int32)
    for wrong in (3, -1):
        with pytest.raises(IndexError):
            gather_rows([source], at, np.array([wrong], np.int32), out)
    with pytest.raises(IndexError):
        gather_rows([source], at + 1, at, out)
    for other in (np.zeros((3, 5), np.float16), np.zeros((3, 4), np.float32), np.zeros((4, 3), np.float16).T):
        with pytest.raises(ValueError, match="rows are"):
            gather_rows([other], at, at, out)
    with pytest.raises(ValueError, match="one length"):
        gather_rows([source], at, at, np.empty((2, 4), np.float16))


@pytest.mark.parametrize(("width", "rows", "count"), [(12, 50, 20_000), (1, 3, 5), (33, 7, 9000), (4, 0, 0)])
def test_sums_by_row_are_in_order(width: int, rows: int, count: int) -> None:
    rng = np.random.default_rng(count)
    values, index = rng.normal(size=(count, width)).astype(np.float32), rng.integers(0, rows or 1, count)
    wanted = np.zeros((rows, width), np.float32)
    np.add.at(wanted, index, values)
    np.testing.assert_array_equal(add_rows(values, index, rows), wanted)


def test_sums_of_a_row_that_is_not_there() -> None:
    values = np.ones((2, 3), np.float32)
    for wrong in (-1, 4):
        with pytest.raises(IndexError, match="of 4"):
            add_rows(values, np.array([0, wrong]), 4)
    with pytest.raises(ValueError, match="expected shape"):
        add_rows(values, np.zeros(3, np.int64), 4)
