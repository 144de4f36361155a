"""Columns of a caller's Python values as Arrow arrays, or a sentence on the first that has no place there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from livectr.ingest.dead_letters.complaints import arrow_words, no_utf8, words_of
from livectr.ingest.language.dtypes import half_a_pair
from livectr.system.errors import ConfigError
from livectr.system.texts import visible
from livectr.system.values import MOST_EXACT

WIDE = pa.decimal128(38)
"""Type of whole numbers beyond int64: the pipeline says what they are."""
_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def array_of(values: Any, name: str) -> Any:
    """A column of values. Numbers may be mixed with true and false, as in a log: they are 1 and 0.

    Args:
        values: whatever `pa.array` takes.
        name: of the column.

    Raises:
        ConfigError: names the first value of another type than those before it.
    """
    try:
        return pa.array(values)
    except _ERRORS:
        pass
    listed = [value.item() if isinstance(value, np.generic) else value for value in values]
    lists = any(isinstance(value, list | tuple) for value in listed)
    ways: list[Callable[[Sequence[Any]], Any]] = [
        pa.array,
        lambda some: pa.array(some, pa.list_(WIDE) if lists else WIDE),
    ]
    if all(value is None or isinstance(value, bool | int | float) for value in listed):
        ways.append(lambda some: pa.array(some, pa.float64()))
        listed = [_whole(value) for value in listed]
    for way in ways:
        try:
            return way(listed)
        except _ERRORS:
            continue
    raise _odd(listed, name)


def _whole(value: Any) -> Any:
    """Number or None; a bool, and a float that is surely whole, as an int."""
    if isinstance(value, bool) or (
        isinstance(value, float) and value.is_integer() and abs(value) <= MOST_EXACT
    ):
        return int(value)
    return value


def _lists(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _odd(values: Sequence[Any], name: str) -> ConfigError:
    """Error that names the first value with which the ones before it have no common type."""
    fit, stop = 0, len(values)  # so many are a column, and so many are none
    while stop - fit > 1:
        middle = (fit + stop) // 2
        try:
            pa.array(values[:middle])
            fit = middle
        except _ERRORS:
            stop = middle
    value, before = values[fit], pa.array(values[:fit])
    if any(isinstance(text, str) and half_a_pair(text) for text in (value if _lists(value) else [value])):
        return ConfigError(f"row {fit}: {no_utf8(name)}")
    words = words_of(value)
    if pa.types.is_null(before.type):
        why = "is no value of a column; give numbers, texts, bytes, or lists of one of them"
    elif words == arrow_words(before.type) or _lists(value):
        why = f"has no place among values of the type {before.type}; give all values of the column one type"
    else:
        why = f"follows {arrow_words(before.type)}; give all values of the column one type"
    return ConfigError(f"row {fit}: column `{name}` is {words} ({visible(repr(value), 40)}), which {why}")
