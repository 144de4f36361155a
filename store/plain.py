"""Values that other programs may have written as JSON, decoded to types: nothing but ValueError is raised."""

from __future__ import annotations

import functools
import json
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints


def read_json(text: bytes | str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is none, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def from_plain(kind: Any, value: Any) -> Any:
    """Value of a type, from what JSON makes of `dataclasses.asdict`.

    Args:
        kind: a dataclass, int (of 64 bits), float, bool, str, Any, or a tuple, dictionary or union of them.
        value: as `json.loads` gives it; keys of a dictionary are texts.

    Raises:
        ValueError: the value, or a part of it, is of another type.
    """
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _object(kind, value)
    if origin in (Union, types.UnionType):
        options = [one for one in inner if one is not types.NoneType]
        return None if value is None and len(options) < len(inner) else from_plain(options[0], value)
    if origin is tuple and isinstance(value, list):
        if inner[-1] is Ellipsis:
            return tuple(from_plain(inner[0], one) for one in value)
        if len(value) == len(inner):
            return tuple(map(from_plain, inner, value))
    elif origin is dict and isinstance(value, dict):
        key = int if inner[0] is int else str
        return {key(name): from_plain(inner[1], one) for name, one in value.items()}
    elif type(value) is kind and (kind is not int or -(1 << 63) <= value < 1 << 63):
        return value
    elif kind is float and type(value) is int:
        return float(value)
    raise ValueError(f"{str(value)[:100]!r} where a value of type {getattr(kind, '__name__', kind)} belongs")


def _object(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"no JSON object of a {kind.__name__}")
    hints = _hints(kind)
    if unknown := sorted(value.keys() - hints.keys()):
        raise ValueError(f"a {kind.__name__} has no field {unknown[0][:100]!r}")
    needed = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}
    if missing := sorted(needed - value.keys()):
        raise ValueError(f"a {kind.__name__} needs a field {missing[0]!r}")
    return kind(**{name: from_plain(hints[name], one) for name, one in value.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
