"""JSON objects to Arrow columns, compiled, for the objects that are plain (`json_columns.hpp` says which)."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]

_TYPES = [pa.int64(), pa.int32(), pa.float64(), pa.float32(), pa.bool_(), pa.string()]


def reads(kind: pa.DataType) -> bool:
    """Return true if a column of this type can be read: numbers, bools, strings, and lists of them."""
    return (kind.value_type if pa.types.is_list(kind) else kind) in _TYPES


class JsonColumns:
    """Reader of JSON objects; thread-safe.

    Args:
        columns: path of names → type, which `reads`; no path is the beginning of another.
        required: first-level names that an object must have, though perhaps as null.
        depth: deepest nesting of objects and lists.

    Raises:
        ValueError: a path or a type that cannot be read.
    """

    def __init__(
        self, columns: Mapping[tuple[str, ...], pa.DataType], required: Collection[str] = (), *, depth: int
    ) -> None:
        if any(not reads(kind) for kind in columns.values()):
            raise ValueError(f"columns of {list(columns.values())} cannot all be read")
        paths = list(columns)
        if any(path == other[: len(path)] for path in paths for other in paths if other is not path):
            raise ValueError(f"of the paths {paths}, one is the beginning of another")
        self._kinds = list(columns.values())
        self._library = _library()
        self._handle = self._library.json_new(depth)
        weakref.finalize(self, self._library.json_delete, self._handle)
        self._lock = threading.Lock()
        for path, kind in zip(paths, self._kinds, strict=True):
            names = [name.encode() for name in path]
            sizes = np.array([len(name) for name in names], np.int64)
            is_list = pa.types.is_list(kind)
            self._library.json_column(
                *(self._handle, b"".join(names), address(sizes), len(sizes)),
                *(_TYPES.index(kind.value_type if is_list else kind), is_list),
                len(path) == 1 and path[0] in required,
            )

    def read(self, texts: Any, starts: I64, stops: I64) -> tuple[list[pa.Array], npt.NDArray[np.bool_]]:
        """Read n texts; text i is texts[starts[i] : stops[i]].

        Args:
            texts: buffer of bytes.
            starts: i64[n].
            stops: i64[n].

        Returns:
            Arrays of the columns, m rows, and bool[n]: which texts are plain, m of them.

        Raises:
            MemoryError: no memory.
        """
        buffer = np.frombuffer(texts, np.uint8) if len(texts) else np.zeros(1, np.uint8)
        starts, stops = (np.ascontiguousarray(places, np.int64) for places in (starts, stops))
        plain = np.empty(len(starts), np.bool_)
        with self._lock:
            rows = self._library.json_read(
                self._handle, address(buffer), address(starts), address(stops), len(starts), address(plain)
            )
            if rows < 0:
                raise MemoryError("no memory for columns of JSON texts")
            columns = [
                taken(
                    kind,
                    rows,
                    partial(self._library.json_sizes, self._handle, number),
                    partial(self._library.json_take, self._handle, number),
                )
                for number, kind in enumerate(self._kinds)
            ]
            return columns, plain


def taken(
    kind: pa.DataType, rows: int, sizes: Callable[[int | None], None], take: Callable[..., None]
) -> pa.Array:
    """Array of a column that a compiled reader has collected (`extract/values.hpp`).

    Args:
        kind: number, bool, string, binary, or a list of them.
        rows: count of rows.
        sizes: `Values::sizes`.
        take: `Values::take`, behind the rows.
    """
    counts = np.empty(3, np.int64)
    sizes(address(counts))
    nulls, items, chars = counts.tolist()
    is_list = pa.types.is_list(kind)
    item = kind.value_type if is_list else kind
    count, text = items if is_list else rows, item in (pa.string(), pa.binary())
    width = 0 if text else -(-count // 8) if item == pa.bool_() else count * item.bit_width // 8
    valid = np.empty(-(-rows // 8), np.uint8) if nulls else None
    ends = np.empty(rows + 1, np.int32) if is_list or text else None
    item_ends = np.empty(items + 1, np.int32) if is_list and text else None
    numbers, data = np.empty(width, np.uint8), np.empty(chars, np.uint8)
    take(
        *(None if part is None else address(part) for part in (valid, ends, item_ends)),
        *(None if text else address(numbers), address(data)),
    )
    bitmap = None if valid is None else pa.py_buffer(valid)
    if text:
        offsets = item_ends if is_list else ends
        parts = [None if is_list else bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    else:
        parts = [None if is_list else bitmap, pa.py_buffer(numbers)]
    values = pa.Array.from_buffers(item, count, parts, null_count=0 if is_list else nulls)
    if not is_list:
        return values
    return pa.Array.from_buffers(
        kind, rows, [bitmap, pa.py_buffer(ends)], null_count=nulls, children=[values]
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
    library.json_new.restype, library.json_new.argtypes = pointer, [number]
    library.json_delete.restype, library.json_delete.argtypes = None, [pointer]
    library.json_column.restype = None
    library.json_column.argtypes = [
        *(pointer, ctypes.c_char_p, pointer, number),
        *(ctypes.c_int32, flag, flag),
    ]
    library.json_read.restype = number
    library.json_read.argtypes = [pointer, pointer, pointer, pointer, number, pointer]
    library.json_sizes.restype, library.json_sizes.argtypes = None, [pointer, number, pointer]
    library.json_take.restype, library.json_take.argtypes = None, [pointer, number, *[pointer] * 5]
    return library
