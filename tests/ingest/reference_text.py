"""Reference of the operators on strings, in plain Python. `reference.evaluate` calls these."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr

Array = npt.NDArray[Any]
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
EMPTY = {"string": "", "bool": False}


def parse_number(text: str, dtype: str) -> Any:
    """A number in text, or 0."""
    if not NUMBER.fullmatch(text):
        return 0
    if dtype.startswith("float"):
        return float(text)
    value = Decimal(text)
    if not value or value.adjusted() not in range(20) or Fraction(value).denominator != 1:
        return 0
    limit = 2 ** (int(dtype[3:]) - 1)
    return int(value) if -limit <= int(value) < limit else 0


def saturated(value: float, dtype: str) -> int:
    limit = 2 ** (int(dtype[3:]) - 1)
    if math.isnan(value):
        return 0
    return (
        max(-limit, min(limit - 1, int(value)))
        if math.isfinite(value)
        else (limit - 1 if value > 0 else -limit)
    )


def _cast(node: Expr, kinds: list[str], x: Array) -> Array:
    to = dtypes.element(node.dtype)
    if kinds[0] == "string":
        return np.array([parse_number(text.strip(" \t\n\v\f\r"), to) for text in x], to)
    if to == "string":
        return objects([str(v).lower() if kinds[0] == "bool" else str(int(v)) for v in x])
    if to == "bool":
        return (x != 0) & ~(x != x)
    if to.startswith("int"):
        return np.array([saturated(v.item(), to) for v in x], to)
    return x.astype(to)


def objects(values: list[str]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


class Members(list[tuple[str, Any]]):
    """An object's members, equal keys too."""


class Number(str):
    """A number's text."""


def no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def depth(value: Any) -> int:
    if isinstance(value, Members):
        return 1 + max((depth(member) for _, member in value), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def scalar_text(text: str) -> str:
    return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)


def json_value(text: str, path: str) -> Any:
    """Members, list, Number, str, bool or None."""
    hooks: dict[str, Any] = dict(object_pairs_hook=Members, parse_int=Number, parse_float=Number)
    try:
        value = json.loads(text, parse_constant=no_constant, **hooks)
    except (ValueError, RecursionError):
        return None
    if depth(value) > 64:
        return None
    for segment in path.split("."):
        if isinstance(value, Members):
            value = {scalar_text(key): member for key, member in value}.get(segment)
        elif isinstance(value, list) and segment.isdecimal() and int(segment) < len(value):
            value = value[int(segment)]
        else:
            return None
    return value


def _json_field(node: Expr, kinds: list[str], x: Array, path: Array) -> Array:
    to = dtypes.element(node.dtype)
    results: list[Any] = []
    for text, where in zip(x, path, strict=True):
        value = json_value(text, where)
        if isinstance(value, Number):
            results.append(parse_number(value, to) if to in dtypes.NUMBERS else EMPTY[to])
        elif isinstance(value, str) and to == "string":
            results.append(scalar_text(value))
        else:
            results.append(value if value is True and to == "bool" else EMPTY.get(to, 0))
    return objects(results) if to == "string" else np.array(results, to)


def _substring(node: Expr, kinds: list[str], x: Array) -> Array:
    start, length = node.params
    cut = []
    for text in x:
        begin = start if start >= 0 else len(text) + start
        end = len(text) if length is None else begin + length
        cut.append(text[max(begin, 0) : max(end, 0)])
    return objects(cut)


def levenshtein(a: str, b: str) -> int:
    """Wagner, Fischer 1974."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def _pairs(function: Callable[[str, str], Any]) -> Callable[..., Array]:
    return lambda node, kinds, a, b: np.array([function(x, y) for x, y in zip(a, b, strict=True)])


MAPPED: dict[str, Callable[..., Array]] = {
    "cast": _cast,
    "json_field": _json_field,
    "trim": lambda node, kinds, x: objects([text.strip(" \t\n\v\f\r") for text in x]),
    "substring": _substring,
    "contains": _pairs(lambda x, text: text in x),
    "starts_with": _pairs(lambda x, text: x.startswith(text)),
    "concat": lambda node, kinds, *inputs: objects(["".join(parts) for parts in zip(*inputs, strict=True)]),
    "edit_distance": _pairs(lambda a, b: levenshtein(a[:256], b[:256])),
}


def _token_overlap(node: Expr, a: Array, b: Array) -> float:
    either = {*a} | {*b}
    return len({*a} & {*b}) / len(either) if either else 0


ROWWISE: dict[str, Callable[..., Any]] = {
    "keywords": lambda node, x: [index for index, word in enumerate(node.params[0]) if word in x],
    "token_overlap": _token_overlap,
}
