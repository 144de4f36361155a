"""Look-ups in dictionaries given with the pipeline: a Python dict or a file of keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import C_TYPES, Expr, Operand, as_expr, mapped, need
from livectr.ingest.language.resources import Resource
from livectr.ingest.operators.pairs import key_places, read_pairs
from livectr.kernels.operators.dictionary import Places
from livectr.kernels.runtime.columns import MAX_ROW_VALUES
from livectr.system.errors import ConfigError

U64 = npt.NDArray[np.uint64]
Value = int | float | bool | str
Default = Value | Sequence[int | float | bool] | None


def lookup(
    x: Operand,
    mapping: Mapping[Any, Any] | str | Path,
    default: Default = None,
    *,
    key: str = "key",
    value: str = "value",
) -> Expr:
    """Look up a key, or each key of a list, in a constant dictionary.

    The dictionary is part of the pipeline's fingerprint; for data that changes while the pipeline runs, use a
    `Table`. A look-up reads one cache line, two for strings and lists. Strings are compared by their 64-bit
    keys: with n keys, an unknown string matches a key with a probability of n / 2⁶⁴.

    Args:
        x: int64, int32 or string, or a list of them.
        mapping: dict, or the path of a Parquet, Arrow IPC or CSV file. Keys are whole numbers or strings, as
            x, without repeats. Values are numbers or bools (the result has their type; Python's are int64,
            float64 or bool), strings, or lists of numbers (only for an x that is no list).
        default: value for other keys; None: 0, false, "" or an empty list.
        key: name of the key column of a file.
        value: name of the value column of a file.

    Example: `lookup(log.country, {"de": 49, "fr": 33}, default=-1)`, `lookup(log.category, "parents.csv")`.
    """
    node = as_expr(x, "lookup")
    need("lookup", node, ("int64", "int32", "string"), "whole numbers or strings")
    where = f"lookup({node})"
    keys, values = read_pairs(mapping, where, node.dtype, key, value)
    places = key_places(keys, where, node)
    dtype, values = _typed(values, where)
    values = values.take(pa.array(places.order))  # in slot order: equal content has equal bytes
    if dtypes.is_list(dtype) and dtypes.is_list(node.dtype):
        raise ConfigError(f"{where}: {node} is {node.dtype} and the values are {dtype}; a list has no lists")
    missing: Any = _default(default, dtype, where)
    params = (len(keys), tuple(missing) if isinstance(missing, list) else missing)
    if dtypes.is_list(dtype):
        resource = _lists(places, values, missing, dtype, where)
        device = Device("{resource}.put(key({0}), {sink})", rowwise=True, resource=resource)
        return Expr("lookup", (node,), dtype=dtype, device=device, params=params)
    if dtype == "string":
        device = Device(
            "{sink}.append({resource}.at(key({0})))", resource=_strings(places, values, missing, where)
        )
    else:
        device = Device("{resource}.at(key({0}))", resource=_numbers(places, values, missing, dtype))
    return mapped("lookup", (node,), dtype=dtype, device=device, params=params)


def _typed(values: pa.Array, where: str) -> tuple[str, pa.Array]:
    """Type of the values in the feature language, and the values in a large Arrow type."""
    kind = values.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    dtype = _dtype(kind.value_type) if is_list else _dtype(kind)
    if not dtype or (is_list and dtype == "string"):
        raise ConfigError(
            f"{where}: values of type {kind} are not numbers, bools, strings or lists of numbers"
        )
    wide = pa.large_string() if dtype == "string" else dtypes.arrow_type(dtype)
    dtype = dtypes.list_of(dtype) if is_list else dtype
    try:
        values = values.cast(pa.large_list(wide) if is_list else wide)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{where}: a value does not fit {dtype}: {error}") from None
    if is_list and values.flatten().null_count:
        raise ConfigError(f"{where}: a list of the values has a null; leave it out or fill it")
    return dtype, values


def _dtype(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int32" if kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()) else "int64"
    if pa.types.is_floating(kind):
        return "float64" if kind == pa.float64() else "float32"
    return "string" if kind in (pa.string(), pa.large_string(), pa.string_view()) else ""


def _default(default: Default, dtype: str, where: str) -> Any:
    kind = dtypes.element(dtype)
    if dtypes.is_list(dtype):
        if isinstance(default, str | int | float):
            raise ConfigError(f"{where}: default={default!r} is not a list, but the values are {dtype}")
        return [dtypes.check_value(item, kind, f"{where}: default") for item in default or ()]
    if default is None:
        return "" if kind == "string" else False if kind == "bool" else 0
    return dtypes.check_value(default, kind, f"{where}: default")


def _numbers(places: Places, values: pa.Array, default: Any, dtype: str) -> Resource:
    words = _words(_joined(values, [default], dtype))
    slots = places.slots(words[:-1], int(words[-1]))
    return Resource(f"NumberDictionary<{C_TYPES[dtype]}>", [slots], [places.shift, places.empty])


def _joined(values: pa.Array, more: Sequence[Any], dtype: str) -> npt.NDArray[Any]:
    return np.concatenate([values.to_numpy(zero_copy_only=False), np.array(more, dtype)])


def _words(values: npt.NDArray[Any]) -> U64:
    """Bytes of each number as the lower bytes of a 64-bit word."""
    words = np.zeros((len(values), 8), np.uint8)
    words[:, : values.itemsize] = values.view(np.uint8).reshape(len(values), values.itemsize)
    return words.view(np.uint64).ravel()


def _strings(places: Places, values: pa.Array, default: str, where: str) -> Resource:
    everything = pa.concat_arrays([values, pa.array([default], pa.large_string())])
    ends, text = np.frombuffer(everything.buffers()[1], np.int64), everything.buffers()[2]
    words = _spans(ends[: len(everything) + 1], 2**24 - 1, where)
    data = np.frombuffer(text, np.uint8)[: ends[len(everything)]] if text else np.empty(0, np.uint8)
    slots = places.slots(words[:-1], int(words[-1]))
    return Resource("StringDictionary", [slots, _filled(data)], [places.shift, places.empty])


def _lists(places: Places, values: pa.Array, default: list[Any], dtype: str, where: str) -> Resource:
    kind = dtypes.element(dtype)
    items = _joined(values.flatten(), default, kind)
    sizes = np.append(values.value_lengths().to_numpy(), len(default))
    words = _spans(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]), MAX_ROW_VALUES, where)
    slots = places.slots(words[:-1], int(words[-1]))
    return Resource(f"ListDictionary<{C_TYPES[kind]}>", [slots, _filled(items)], [places.shift, places.empty])


def _spans(ends: npt.NDArray[np.int64], most: int, where: str) -> U64:
    """Words of the pieces between `ends`: begin in the upper 40 bits, size in the lower 24."""
    sizes = np.diff(ends)
    if sizes.max(initial=0) > most or ends[-1] >= 1 << 40:
        raise ConfigError(f"{where}: a value has {sizes.max()} bytes or items; at most {most} can be held")
    return (ends[:-1].astype(np.uint64) << np.uint64(24)) | sizes.astype(np.uint64)


def _filled(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Array with at least one element: a pointer to an empty array may not be copied from."""
    return array if len(array) else np.zeros(1, array.dtype)
