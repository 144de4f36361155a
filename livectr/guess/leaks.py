"""Columns that are known only after the click: they tell the label, and no request will have them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

LEAST_CLICKS = 10
"""Clicks below which nothing is said: a few rows agree by chance."""
CERTAIN = 0.98
"""AUC of a number alone, and share of rows without a click that have a value, from which it is a leak."""
CHANCE = 1e-9
"""Probability below which rows of another value are not all clicked by chance."""
DIFFERENT = 0.2
"""Share of different rows from which equal ones are repeated, and not equal by chance."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def tells(values: pa.ChunkedArray | pa.Array, clicked: npt.NDArray[np.bool_]) -> str:
    """Words on how a column tells the label; "" if it does not.

    Args:
        values: n values of a plain type; lists tell nothing.
        clicked: bool[n], the label.
    """
    clicks = int(clicked.sum())
    if clicks < LEAST_CLICKS or len(clicked) - clicks < LEAST_CLICKS or pa.types.is_nested(values.type):
        return ""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    coded = whole.dictionary_encode(null_encoding="encode")
    codes = coded.indices.to_numpy(zero_copy_only=False)
    if words := _sentinel(coded, codes, clicked):
        return words
    if (area := _auc_of_values(codes, len(coded.dictionary), clicked)) >= CERTAIN:
        return f"tells the label: by its values' click rates alone it has AUC {area:.3f}"
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        numbers = pc.fill_null(values.cast(pa.float64(), safe=False), np.nan)  # large ones are rounded
        area = _auc(numbers.to_numpy(zero_copy_only=False), clicked)
        if max(area, 1 - area) >= CERTAIN:
            return f"tells the label: alone it has AUC {max(area, 1 - area):.3f}"
    return ""


def first_rows(columns: Iterable[pa.ChunkedArray | pa.Array], rows: int) -> npt.NDArray[np.bool_]:
    """bool[rows], rows that repeat no earlier one: a row's twin would tell its label by any value of it.

    All rows count where few are different: rows of a log with few columns are equal by chance.
    """
    mixed = np.zeros(rows, np.uint64)
    for column in columns:
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_nested(whole.type):
            whole = pa.array([repr(value) for value in whole.to_pylist()], pa.string())
        coded = whole.dictionary_encode(null_encoding="encode")
        codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.uint64)
        mixed = (mixed ^ (codes + _SPREAD)) * _SPREAD
        mixed ^= mixed >> np.uint64(29)
    firsts = np.zeros(rows, np.bool_)
    firsts[np.unique(mixed, return_index=True)[1]] = True
    return firsts if firsts.mean() >= DIFFERENT else np.ones(rows, np.bool_)


def _sentinel(coded: pa.DictionaryArray, codes: npt.NDArray[np.int32], clicked: npt.NDArray[np.bool_]) -> str:
    """A value, or none, that nearly all rows without a click have, while other values are those of clicks.

    Some clicks may have it, too: an order follows a few of them.
    """
    without = np.bincount(codes[~clicked], minlength=len(coded.dictionary)) / (~clicked).sum()
    common = int(np.argmax(without))
    if without[common] < CERTAIN:
        return ""
    value = coded.dictionary[common].as_py()
    same = f"is {'empty' if value is None else value} wherever there is no click"
    if np.mean(codes[clicked] == common) <= 1 - CERTAIN:
        return f"{same}, and nowhere else"
    others = clicked[codes != common]
    clicks = int(others.sum())
    if clicks < max(LEAST_CLICKS, CERTAIN * len(others)) or clicks * np.log(clicked.mean()) > np.log(CHANCE):
        return ""
    return f"{same}: {clicks:,} of {len(others):,} rows with another value have one"


def _auc_of_values(codes: npt.NDArray[np.int32], count: int, clicked: npt.NDArray[np.bool_]) -> float:
    """AUC of each value's click rate in one half of the rows as a score for the other half.

    Args:
        codes: int32[n], each row's value.
        count: of different values.
        clicked: bool[n].
    """
    half = np.zeros(len(codes), np.bool_)
    for rows in (np.flatnonzero(clicked), np.flatnonzero(~clicked)):  # both halves have clicks
        half[rows[::2]] = True
    shown = np.bincount(codes[half], minlength=count)
    rates = (np.bincount(codes[half & clicked], minlength=count) + clicked.mean()) / (shown + 1)
    return _auc(rates[codes[~half]], clicked[~half])


def _auc(numbers: npt.NDArray[np.float64], clicked: npt.NDArray[np.bool_]) -> float:
    """Area under the ROC curve of a number as a score, ties counted half; empty ones are the least."""
    numbers = np.where(np.isnan(numbers), -np.inf, numbers)
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    clicks = int(clicked.sum())
    ranks = float(middle[place][clicked].sum())
    return (ranks - clicks * (clicks + 1) / 2) / (clicks * (len(clicked) - clicks))
