"""Meaning of a value in a column, the same through every door.

A value comes as Python has it after JSON: None, bool, int, float, str, list; bytes where the door has bytes.
`meaning` says what it is in a column of a type, or why it is none. Decoders of logs, servers and the library
have faster code for columns of values. A test holds all of them to this module, and docs/values.md is written
from it. Types are those of `ingest.language.dtypes`.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np

MOST_EXACT = 2**53
"""Largest whole number up to which every whole number is a float64, too: 17.0 is 17 up to here."""


class Misfit(Enum):
    """Reason why a column cannot hold a value."""

    TYPE = "another type"
    RANGE = "a whole number out of range"
    INFINITE = "an infinite number, or a NaN in a list"
    NOT_A_BOOL = "a number other than 0 and 1"
    NO_UTF8 = "a text that UTF-8 cannot write"
    NULL_INSIDE = "a list with a null"


class UnfitError(ValueError):
    """A value that a column cannot hold."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.value)
        self.misfit = misfit


def meaning(value: Any, dtype: str) -> Any:
    """Value that a column holds for a value from outside.

    Args:
        value: None, bool, int, float, str, bytes or list of these; NumPy's scalars count as Python's.
        dtype: type of the column.

    Returns:
        The value as int, float (rounded to float32 where that is the type), bool, str, bytes or list; None
        for null, which reads as the column's `fill`, or as 0, "", false or an empty list.

    Raises:
        UnfitError: the column cannot hold it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    if dtype.startswith("list<"):
        return _items(value, dtype[5:-1])
    texts = dtype in ("string", "binary")
    if isinstance(value, float) and math.isnan(value) and not texts:
        return None
    if texts:
        return _text(value, dtype)
    if not isinstance(value, int | float):
        raise UnfitError(Misfit.TYPE)
    if dtype in ("int64", "int32"):
        return _whole(value, int(dtype[3:]))
    return _bool(value) if dtype == "bool" else _float(value, dtype)


def _whole(value: float, bits: int) -> int:
    if isinstance(value, float):  # a column of whole numbers that once held a null
        if not value.is_integer() or abs(value) > MOST_EXACT:
            raise UnfitError(Misfit.TYPE)
        value = int(value)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise UnfitError(Misfit.RANGE)
    return int(value)


def _float(value: float, dtype: str) -> float:
    try:
        with np.errstate(over="ignore"):
            number = float(np.float32(value)) if dtype == "float32" else float(value)
    except OverflowError:  # of an int
        number = math.inf
    if math.isinf(number):
        raise UnfitError(Misfit.INFINITE)
    return number


def _bool(value: float) -> bool:
    if value not in (0, 1):
        raise UnfitError(Misfit.NOT_A_BOOL)
    return value == 1


def _text(value: Any, dtype: str) -> str | bytes:
    if not isinstance(value, str if dtype == "string" else bytes):
        raise UnfitError(Misfit.TYPE)
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise UnfitError(Misfit.NO_UTF8)
    return value


def _items(value: Any, item: str) -> list[Any]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise UnfitError(Misfit.TYPE)
    found = []
    for one in value:
        if one is None:
            raise UnfitError(Misfit.NULL_INSIDE)
        if isinstance(one, bool | np.bool_) != (item == "bool"):
            raise UnfitError(Misfit.TYPE)
        if (kept := meaning(one, item)) is None:  # NaN
            raise UnfitError(Misfit.INFINITE)
        found.append(kept)
    return found
