"""Sentences about records that do not fit their declaration: the mistake, and what to change.

Equal mistakes give equal sentences, so that they can be counted (see `ingest.dead_letters.usable`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.system.values import Misfit

_MOST_NAMES = 20

# Type found in the log → type to declare for it.
_DECLARE = {
    "text": "string",
    "a whole number": "int64",
    "a number with a fraction": "float64",
    "true or false": "bool",
    "binary": "binary",
}


def missing_column(name: str, seen: Iterable[str]) -> str:
    """Sentence about a declared column that records lack; seen: the columns that they have."""
    return _missing(name, tuple(sorted(seen)))


@lru_cache(maxsize=256)
def _missing(name: str, seen: tuple[str, ...]) -> str:
    message = f"column `{name}` is not in the log"
    by_lower = {other.lower(): other for other in seen}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    if close:
        return f"{message}; did you mean `{by_lower[close[0]]}`?"
    if not seen:
        return f"{message}; it has no columns"
    more = f" and {len(seen) - _MOST_NAMES} more" if len(seen) > _MOST_NAMES else ""
    return f"{message}; its columns are {', '.join(seen[:_MOST_NAMES])}{more}"


def repeated_column(name: str) -> str:
    """Sentence about a column that a table has twice."""
    return f"column `{name}` is there twice"


def wrong_type(name: str, dtype: str, actual: str) -> str:
    """Sentence about a column of another type than declared.

    Args:
        name: of the column.
        dtype: declared type.
        actual: type in the log, in words (`words_of`, `arrow_words`).
    """
    message = f"column `{name}` is {actual} in the log, the pipeline says {dtype}"
    if actual in _DECLARE:
        return f"{message}; declare {_DECLARE[actual]}, or write {dtype} to the log"
    return f"{message}; write {dtype} to the log"


def no_column(name: str, actual: str, instead: str) -> str:
    """Sentence about a field that no column can hold; actual: its type, instead: what to write."""
    return f"column `{name}` is {actual} in the log, which no column can hold; {instead}"


def words_of(value: Any) -> str:
    """Type of a JSON value, in words."""
    words: dict[type, str] = {
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number with a fraction",
        bytes: "binary",
        list: "a list",
        tuple: "a list",
        dict: "an object",
        type(None): "null",
    }
    return words.get(type(value), f"of type {type(value).__name__}")


def arrow_words(kind: pa.DataType) -> str:
    """Arrow type, in words."""
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_integer(kind):
        return "a whole number"
    if types.is_floating(kind):
        return "a number with a fraction"
    if types.is_boolean(kind):
        return "true or false"
    return str(kind)


def not_a_bool(name: str, value: Any) -> str:
    """Sentence about a number other than 0 and 1 in a bool column."""
    return (
        f"column `{name}` is {value}, the pipeline says bool; write true, false, 0 or 1, or declare a number"
    )


def not_finite(name: str) -> str:
    """Sentence about an infinite number, or about one in a list that is infinite or NaN."""
    return f"column `{name}` is not a finite number"


def null_inside(name: str) -> str:
    """Sentence about a list with a null."""
    return f"column `{name}` is a list with a null inside"


def no_utf8(name: str) -> str:
    """Sentence about a text that UTF-8 cannot write."""
    return f"column `{name}` is no UTF-8: half a pair of surrogates, or a text in another encoding"


def empty(name: str, *, fills: bool) -> str:
    """Sentence about a null where every row needs a value; fills: a fill may stand in for it."""
    cure = f'; say fill={{"{name}": …}} in the pipeline file for such rows' if fills else ""
    return f"column `{name}` is null{cure}"


def wrong_label(name: str, value: Any) -> str:
    """Sentence about a label that is neither 0 nor 1."""
    return f"label `{name}` is {value}; write 1 for a click and 0 for none (or true and false)"


_UNITS = {"s": "seconds", "us": "microseconds", "ns": "nanoseconds"}


def wrong_unit(name: str, unit: str) -> str:
    """Sentence about an event time in the wrong unit.

    As milliseconds it lies outside 1990 to 2100, in `unit` ("s", "us", "ns") within 2000 to 2100.
    """
    change = "multiply it by 1000" if unit == "s" else f"divide it by {1000 if unit == 'us' else 1_000_000}"
    return (
        f"time `{name}` is in {_UNITS[unit]}, the pipeline says milliseconds; {change}, or declare "
        f'time=EventTime("{name}", unit="{unit}") (unit="ms" if it is milliseconds indeed)'
    )


def beyond_years(name: str, value: str) -> str:
    """Sentence about a typed time that no whole number of its column's unit can be."""
    return f"column `{name}` is {value} since 1970: no time of the years 1 to 9999"


def no_time(name: str, value: int) -> str:
    """Sentence about an event time that no calendar has."""
    return f"{name} is {value}: no time in milliseconds of the years 1 to 9999"


def out_of_range(name: str, dtype: str) -> str:
    """Sentence about a whole number that the declared type cannot hold."""
    wider = "int64" if dtype == "int32" else "string"
    return f"column `{name}` has whole numbers that {dtype} cannot hold; declare {wider}"


def misfit(name: str, dtype: str, value: Any, why: Misfit) -> str:
    """Sentence about a value that a column cannot hold."""
    if why is Misfit.INFINITE:
        return not_finite(name)
    if why is Misfit.NO_UTF8:
        return no_utf8(name)
    if why is Misfit.NULL_INSIDE:
        return null_inside(name)
    return of_value(name, dtype, value)


def of_value(name: str, dtype: str, value: Any) -> str:
    """Sentence about a JSON value that does not fit a column."""
    item = dtypes.element(dtype)
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list) and dtypes.is_list(dtype):
        odd = next((v for v in value if type(v) not in (type(None), *_fitting(item))), None)
        actual = f"a list with {words_of(odd)}" if odd is not None else "a list with a number out of range"
        return wrong_type(name, dtype, actual)
    if type(value) is int and item in ("int32", "int64") and not dtypes.is_list(dtype):
        return out_of_range(name, dtype)
    if dtype == "bool" and type(value) in (int, float):
        return not_a_bool(name, value)
    return wrong_type(name, dtype, words_of(value))


def _fitting(item: str) -> tuple[type, ...]:
    if item in ("int32", "int64"):
        return (int,)
    if item in ("float32", "float64"):
        return (int, float)
    return (bool,) if item == "bool" else (str,)
