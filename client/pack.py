"""Packing of Python values into the messages of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.protos import livectr_pb2 as pb
from livectr.system.errors import ConfigError
from livectr.system.values import UnfitError, meaning

Content = Mapping[str, Mapping[int, npt.ArrayLike]]
"""Content name → id → raw features f[width]; `describe` names the width."""

FIELDS = {
    "int64": "ints",
    "int32": "ints",
    "float64": "doubles",
    "float32": "doubles",
    "bool": "bools",
    "string": "strings",
    "binary": "bytes",
}
"""Type of a column's elements → field of a Column message."""

NONE = {"ints": 0, "doubles": 0.0, "bools": False, "strings": "", "bytes": b""}
"""Field of a Column message → what it holds for a row without a value."""
_EXACTLY = {"bools": {bool, np.bool_}, "doubles": {int, float, np.float64, np.float32, np.int64, np.int32}}


class FieldError(ConfigError):
    """Field of a request that cannot be meant.

    Args:
        field: its name; "": the request as a whole.
        problem: the sentence, without the name that it begins with.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}".lstrip())
        self.field, self.problem = field, problem


class ColumnError(FieldError, TypeError):
    """Values that a column cannot hold."""


def set_items(request: Any, prefix: str, items: Sequence[int] | Sequence[str]) -> None:
    """Set the ids or names of a request."""
    named = len(items) > 0 and isinstance(items[0], str)
    target = getattr(request, f"{prefix}{'names' if named else 'ids'}")
    target.SetInParent()
    try:
        target.values.extend(items)
    except (TypeError, ValueError):
        raise ColumnError("items", "must be ids of int64, or names, and not both") from None


def content_of(content: Content | None) -> list[Any]:
    """ContentFeatures messages of raw features, converted to float16. Raises ColumnError for other values."""
    try:
        return [
            pb.ContentFeatures(
                name=name, ids=list(rows), features=np.array(list(rows.values()), "<f2").tobytes()
            )
            for name, rows in (content or {}).items()
        ]
    except (TypeError, ValueError) as error:
        raise ColumnError(
            "content", f"must be ids of int64 with rows of numbers, of one length: {error}"
        ) from None


def column_of(name: str, values: Sequence[Any], dtype: str | None = None) -> pb.Column:
    """Column message with a value for each row.

    Args:
        name: of the column.
        values: one for each row.
        dtype: type of the column; None: inferred from the first value that is not None.

    Raises:
        ColumnError: the column cannot hold the values.
    """
    try:
        return _column(name, values, dtype)
    except ColumnError:
        raise
    except (TypeError, ValueError):  # protobuf's words are about its messages
        if dtype is not None:
            return _slowly(name, values, dtype)
        if any(value is None for value in values):
            return _slowly(name, values, _dtype(name, values))
        for value in values:
            try:
                _column(name, [value], dtype)
            except (TypeError, ValueError):
                raise ColumnError(name, f"is {value!r}, but must be of one type") from None
        raise ColumnError(name, "has values of more than one type") from None


def _slowly(name: str, values: Sequence[Any], dtype: str) -> pb.Column:
    """Column message of values that are not written as their type is, such as None and 17.0."""
    found = []
    for value in values:
        try:
            found.append(meaning(value, dtype))
        except UnfitError:
            raise ColumnError(name, f"is {value!r}, but must be {dtype}") from None
    none: Any = [] if dtype.startswith("list<") else NONE[FIELDS[dtype]]
    column = _column(name, [none if value is None else value for value in found], dtype)
    column.nulls.extend(row for row, value in enumerate(found) if value is None)
    return column


def _dtype(name: str, values: Sequence[Any]) -> str:
    """Type of a column by its first value that is not None."""
    first = next((value for value in values if value is not None), None)
    if first is None:
        raise ColumnError(name, "has no value; say its type")
    of = {"ints": "int64", "doubles": "float64", "bools": "bool", "strings": "string", "bytes": "binary"}
    if isinstance(first, list | tuple):
        return f"list<{of[_kind(name, first)]}>"
    return of[_kind(name, [first])]


def _column(name: str, values: Sequence[Any], dtype: str | None) -> pb.Column:
    column = pb.Column(name=name)
    flat: Any = values
    listed = dtype.startswith("list<") if dtype else len(values) > 0 and isinstance(values[0], (list, tuple))
    if listed:
        if any(isinstance(row, str | bytes | Mapping) for row in values):
            raise TypeError  # not a list of characters
        column.offsets.extend(np.cumsum([0, *map(len, values)]).tolist())
        flat = [item for row in values for item in row]
    element = dtype.removeprefix("list<").removesuffix(">") if dtype else None
    kind = FIELDS[element] if element is not None else _kind(name, flat)
    lax = kind == "bools" or (listed and kind == "doubles")  # protobuf takes 5 for true, and true for 1.0
    if lax and not isinstance(flat, np.ndarray) and not set(map(type, flat)) <= _EXACTLY[kind]:
        raise TypeError
    target = getattr(column, kind)
    target.SetInParent()
    target.values.extend(flat.tolist() if isinstance(flat, np.ndarray) else flat)
    return column


def _kind(name: str, values: Any) -> str:
    first = values[0] if len(values) else 0
    for types, kind in (
        ((bool, np.bool_), "bools"),
        ((int, np.integer), "ints"),
        ((float, np.floating), "doubles"),
        ((str,), "strings"),
        ((bytes,), "bytes"),
    ):
        if isinstance(first, types):
            return kind
    raise ColumnError(name, f"has a value of {type(first).__name__}, which is no type of a column")
