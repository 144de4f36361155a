"""Types of columns and expressions, by name.

Scalars: int64, int32, float32, float64, bool, string (UTF-8), binary. Lists: list<scalar> of any scalar but
binary. Memory follows Arrow: fixed-width values; strings as offsets int32[n + 1] + bytes; lists as offsets
int32[n + 1] + items.

A column may also be an image, the bytes of a picture that decodes; no expression has that type.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from livectr.system.errors import ConfigError

NUMBERS = ("int64", "int32", "float32", "float64")
FIXED = (*NUMBERS, "bool")
TEXTS = ("string", "binary")
SCALARS = (*FIXED, *TEXTS)
BYTES = ("binary", "image")
"""Types that are base64 text in JSON."""
DTYPES = (*SCALARS, "image", *(f"list<{scalar}>" for scalar in (*FIXED, "string")))

_ARROW = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "image": pa.binary(),
}


def check_dtype(dtype: str, where: str) -> str:
    """Return `dtype` if it is known.

    Raises:
        ConfigError: it is not; the message names `where` and the known types.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"{where}: unknown type {dtype!r}; known types are {', '.join(DTYPES)}")
    return dtype


def is_list(dtype: str) -> bool:
    """Return true for the types of list columns."""
    return dtype.startswith("list<")


def element(dtype: str) -> str:
    """Type of a list's items; a scalar type is its own element type."""
    return dtype[5:-1] if is_list(dtype) else dtype


def list_of(dtype: str) -> str:
    """Type of a list column, by the type of its items."""
    return f"list<{dtype}>"


def arrow_type(dtype: str) -> Any:
    """DataType of pyarrow for columns of this type."""
    return pa.list_(_ARROW[element(dtype)]) if is_list(dtype) else _ARROW[dtype]


def dtype_of(arrow: Any) -> str:
    """Type of columns that have a DataType of pyarrow; the inverse of `arrow_type`, but for images.

    Raises:
        KeyError: columns have no such type.
    """
    if pa.types.is_list(arrow):
        return list_of(dtype_of(arrow.value_type))
    return {kind: dtype for dtype, kind in _ARROW.items() if dtype != "image"}[arrow]


def is_arrow(arrow: Any, dtype: str) -> bool:
    """Return true if an Arrow type has exactly the memory layout of `dtype`.

    Names of item fields may differ.
    """
    if is_list(dtype):
        return bool(pa.types.is_list(arrow)) and is_arrow(arrow.value_type, element(dtype))
    return bool(arrow == _ARROW[dtype])


def is_encoded(arrow: Any, dtype: str) -> bool:
    """Return true if an Arrow type is dictionary-encoded with int32 indices and values of `dtype`."""
    return (
        bool(pa.types.is_dictionary(arrow))
        and arrow.index_type == pa.int32()
        and is_arrow(arrow.value_type, dtype)
    )


def promote(a: str, b: str) -> str:
    """Number type that holds both (NumPy's rule); bool counts as int32, so that it can be summed."""
    numbers = ["int32" if dtype == "bool" else dtype for dtype in (a, b)]
    return str(np.promote_types(*numbers))


def half_a_pair(text: str) -> bool:
    """True for a text with half a pair of surrogates, which UTF-8 cannot hold."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def check_value(value: object, dtype: str, where: str) -> Any:
    """Return a Python value that fits the scalar `dtype`.

    Raises:
        ConfigError: it does not fit; the message names `where`.
    """
    kinds: dict[str, tuple[type, ...]] = {
        "bool": (bool,),
        "string": (str,),
        "binary": (bytes,),
        "int32": (int,),
        "int64": (int,),
        "float32": (int, float),
        "float64": (int, float),
    }
    fits = dtype in kinds and isinstance(value, kinds[dtype])
    fits = fits and not (isinstance(value, bool) and dtype != "bool")
    if fits and dtype in ("int32", "int64"):
        fits = -(2 ** (int(dtype[3:]) - 1)) <= int(value) < 2 ** (int(dtype[3:]) - 1)  # type: ignore[call-overload]
    if fits and dtype in ("float32", "float64"):
        try:
            fits = bool(np.isfinite(np.dtype(dtype).type(value)))
        except OverflowError:  # of an int
            fits = False
    if fits and isinstance(value, str):
        fits = not half_a_pair(value)
    if not fits:
        raise ConfigError(f"{where}: {value!r} is not a value of type {dtype}")
    return float(value) if dtype in ("float32", "float64") else value  # type: ignore[arg-type]


def json_values(column: pa.Array, dtype: str) -> Sequence[Any]:
    """Values of a column as JSON types: binary as base64 text, an image as null because nothing reads it."""
    if dtype == "image":
        return [None] * len(column)
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    return values
