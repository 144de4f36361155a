"""Columns of a request: protobuf values become Arrow arrays, or an error names the field."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.client.pack import FIELDS
from livectr.ingest.language import dtypes
from livectr.serving.errors import RequestError
from livectr.serving.limits import DEFAULT, RequestLimits

_BEYOND_FLOAT32 = 2.0**128 - 2.0**103
"""Smallest float64 that rounds to an infinite float32."""

_NO_INT32 = "holds a number that does not fit int32"
_NO_FLOAT32 = "holds a number that does not fit float32"

_SMALL = 1 << 16
"""Integers below it have their arrays kept."""

_SHORT = 64
"""Characters of a text whose array is kept; far fewer than any limit."""


def to_arrow(column: Any, dtype: str, rows: int, where: str, limits: RequestLimits = DEFAULT) -> pa.Array:
    """Convert a Column message into an array of `rows` values of `dtype`.

    Args:
        column: message; its offsets are those of a list.
        dtype: of the pipeline's column.
        rows: 1 for the context, else the candidates.
        where: name of the field in error messages.
        limits: upper bounds of a request.

    Raises:
        RequestError: names `where`.
    """
    kind, listed = column.WhichOneof("values"), dtypes.is_list(dtype)
    expected = FIELDS[dtypes.element(dtype) if listed else dtype]
    if kind is None:
        raise RequestError(where, f"holds no values; send {expected} ({dtype})")
    if kind != expected:
        raise RequestError(where, f"holds {kind}; send {expected} ({dtype})")
    values = getattr(column, kind).values
    if len(column.nulls):
        return _with_nulls(column, dtype, rows, where, limits)
    if rows == 1 and len(values) == 1 and not (listed or len(column.offsets)):
        return _single(values[0], dtype, where, limits)
    if not listed:
        if len(column.offsets):
            raise RequestError(where, f"has offsets, but {dtype} is no list")
        if len(values) != rows:
            raise RequestError(where, f"holds {len(values)} values, expected {rows}")
        return _flat(values, dtype, where, limits)
    offsets = np.array(column.offsets, np.int64)
    if (
        len(offsets) != rows + 1
        or offsets[0] != 0
        or offsets[-1] != len(values)
        or (np.diff(offsets) < 0).any()
    ):
        raise RequestError(
            where, f"needs {rows + 1} rising offsets from 0 to {len(values)}, the number of its values"
        )
    if (longest := int(np.diff(offsets).max(initial=0))) > limits.list:
        raise RequestError(
            where, f"has a list of {longest} values; this server takes at most {limits.list} (max_list)"
        )
    flat = _flat(values, dtypes.element(dtype), where, limits, in_list=True)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)


def _with_nulls(column: Any, dtype: str, rows: int, where: str, limits: RequestLimits) -> pa.Array:
    """As `to_arrow`, for a column with rows without a value."""
    nulls = np.array(column.nulls, np.int64)
    if nulls[-1] >= rows or (np.diff(nulls) <= 0).any():
        raise RequestError(where, f"nulls must be rising numbers of its {rows} rows")
    plain = type(column)()
    plain.CopyFrom(column)
    plain.ClearField("nulls")
    array = to_arrow(plain, dtype, rows, where, limits)
    empty = np.zeros(rows, bool)
    empty[nulls] = True
    return pc.if_else(pa.array(empty), pa.scalar(None, array.type), array)


def finite(values: Any, where: str) -> npt.NDArray[np.float64]:
    """Convert a repeated double field into f64[n].

    Raises:
        RequestError: a value is not a finite number.
    """
    numbers = np.array(values, np.float64)
    if not np.isfinite(numbers).all():
        raise RequestError(where, f"value {int(np.argmin(np.isfinite(numbers)))} is not a finite number")
    return numbers


def check_string(size: int, where: str, limits: RequestLimits) -> None:
    """Check the size of a string in bytes.

    Raises:
        RequestError: the string is too long.
    """
    if size > limits.string_bytes:
        raise RequestError(
            where,
            f"holds a string of {size} bytes; this server takes at most {limits.string_bytes} "
            "(max_string_bytes)",
        )


def strings(values: Any, dtype: str, where: str, limits: RequestLimits) -> pa.Array:
    """Convert a repeated string or bytes field into an array.

    Raises:
        RequestError: a string is too long.
    """
    array = pa.array(list(values), dtypes.arrow_type(dtype))
    offsets = np.frombuffer(array.buffers()[1] or b"", np.int32)
    check_string(int(np.diff(offsets[: len(array) + 1]).max(initial=0)), where, limits)
    return array


def _single(value: Any, dtype: str, where: str, limits: RequestLimits) -> pa.Array:
    """Convert a single scalar into an array, as `_flat`; a context is a few of them."""
    if dtype in dtypes.TEXTS:
        if len(value) <= _SHORT:
            return _short_text(value, dtype)
        check_string(len(value.encode() if dtype == "string" else value), where, limits)
        return pa.array([value], dtypes.arrow_type(dtype))
    if dtype == "bool":
        return pa.array([value], pa.bool_())
    if dtype == "int32" and not -(2**31) <= value < 2**31:
        raise RequestError(where, _NO_INT32)
    if dtype in ("float64", "float32"):
        if math.isnan(value):
            return pa.nulls(1, dtypes.arrow_type(dtype))
        if math.isinf(value):
            raise RequestError(where, "value 0 is not a finite number")
        if dtype == "float32" and abs(value) >= _BEYOND_FLOAT32:
            raise RequestError(where, _NO_FLOAT32)
    elif -_SMALL < value < _SMALL:
        return _small_number(value, dtype)
    return pa.array(np.array((value,), dtype))


@functools.lru_cache(maxsize=4096)
def _small_number(value: int, dtype: str) -> pa.Array:
    """Array of a small number; devices, positions and hours come again and again."""
    return pa.array(np.array((value,), dtype))


@functools.lru_cache(maxsize=4096)
def _short_text(value: str | bytes, dtype: str) -> pa.Array:
    """Array of a short text; devices, sites and queries come again and again."""
    return pa.array([value], dtypes.arrow_type(dtype))


def _flat(values: Any, dtype: str, where: str, limits: RequestLimits, *, in_list: bool = False) -> pa.Array:
    """Convert values into an array; a NaN is null, but in a list an error."""
    arrow = dtypes.arrow_type(dtype)
    if dtype in ("int64", "int32"):
        numbers = np.array(values, np.int64)
        if dtype == "int32" and len(numbers) and not -(2**31) <= numbers.min() <= numbers.max() < 2**31:
            raise RequestError(where, _NO_INT32)
        buffer = pa.py_buffer(numbers.astype(dtype, copy=False))
        return pa.Array.from_buffers(arrow, len(numbers), [None, buffer], 0)
    if dtype in ("float64", "float32"):
        floats = np.array(values, np.float64)
        mask = None
        if not in_list and (missing := np.isnan(floats)).any():
            floats[missing], mask = 0.0, missing
        floats = finite(floats, where)
        if dtype == "float32" and (np.abs(floats) >= _BEYOND_FLOAT32).any():
            raise RequestError(where, _NO_FLOAT32)
        return pa.array(floats.astype(dtype, copy=False), arrow, mask=mask)
    if dtype in dtypes.TEXTS:
        return strings(values, dtype, where, limits)
    return pa.array(list(values), arrow)
