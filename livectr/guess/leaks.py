"""Columns that are known only after the click: they tell the label, and no request will have them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

LEAST_CLICKS = 10
"""Clicks below which nothing is said: a few rows agree by chance."""
CERTAIN = 0.98
"""AUC of a number alone, and share of rows without a click that have a value, from which it is a leak."""


def tells(values: pa.ChunkedArray | pa.Array, clicked: npt.NDArray[np.bool_]) -> str:
    """Words on how a column tells the label; "" if it does not.

    Args:
        values: n values of a plain type; lists tell nothing.
        clicked: bool[n], the label.
    """
    clicks = int(clicked.sum())
    if clicks < LEAST_CLICKS or len(clicked) - clicks < LEAST_CLICKS or pa.types.is_nested(values.type):
        return ""
    if words := _sentinel(values, clicked):
        return words
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        numbers = pc.fill_null(values.cast(pa.float64(), safe=False), np.nan)  # large ones are rounded
        area = _auc(numbers.to_numpy(zero_copy_only=False), clicked)
        if max(area, 1 - area) >= CERTAIN:
            return f"tells the label: alone it has AUC {max(area, 1 - area):.3f}"
    return ""


def _sentinel(values: pa.ChunkedArray | pa.Array, clicked: npt.NDArray[np.bool_]) -> str:
    """A value, or none, that nearly all rows without a click have, and next to no row with one."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    coded = whole.dictionary_encode(null_encoding="encode")
    codes = coded.indices.to_numpy(zero_copy_only=False)
    without = np.bincount(codes[~clicked], minlength=len(coded.dictionary)) / (~clicked).sum()
    common = int(np.argmax(without))
    if without[common] < CERTAIN or np.mean(codes[clicked] == common) > 1 - CERTAIN:
        return ""
    value = coded.dictionary[common].as_py()
    return f"is {'empty' if value is None else value} wherever there is no click, and nowhere else"


def _auc(numbers: npt.NDArray[np.float64], clicked: npt.NDArray[np.bool_]) -> float:
    """Area under the ROC curve of a number as a score, ties counted half; empty ones are the least."""
    numbers = np.where(np.isnan(numbers), -np.inf, numbers)
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    clicks = int(clicked.sum())
    ranks = float(middle[place][clicked].sum())
    return (ranks - clicks * (clicks + 1) / 2) / (clicks * (len(clicked) - clicks))
