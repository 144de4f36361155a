"""Rows by (table, key) in a file: Python interface of `tiers/row_log.hpp`."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

SEGMENT_BYTES = 4 << 20
"""Most bytes of a segment, one of which is in memory."""


class RowLog:
    """Rows of one width by (table number, key). Thread-safe; reads see all earlier writes.

    All calls release the GIL. They raise OSError if the file cannot be read or written, MemoryError without
    memory.

    Args:
        file: descriptor of an empty file, open for reading and writing; the caller closes it after the log.
        width: bytes of a row.
        segment_bytes: most bytes of a segment.
    """

    def __init__(self, file: int, width: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.width = width
        self._library = _library()
        made = ctypes.c_void_p()
        _checked(self._library.log_new(file, width, segment_bytes, ctypes.byref(made)))
        self._handle = made.value
        self.close = weakref.finalize(self, self._library.log_delete, self._handle)
        """Frees memory and mappings; no call may follow."""

    def __len__(self) -> int:
        return int(self._library.log_size(self._handle))

    @property
    def file_bytes(self) -> int:
        """Bytes of the segments in use."""
        return int(self._library.log_file_bytes(self._handle))

    @property
    def memory_bytes(self) -> int:
        """Bytes of the index and of the segment in memory."""
        return int(self._library.log_memory_bytes(self._handle))

    def put(self, tables: U32, keys: I64, rows: Bytes) -> None:
        """Store rows uint8[n, width] of tables uint32[n] and keys int64[n].

        A later row replaces an earlier row.
        """
        tables, keys = _names(tables, keys)
        rows = contiguous(rows, np.uint8, (len(keys), self.width))
        _checked(
            self._library.log_put(self._handle, address(tables), address(keys), len(keys), address(rows))
        )

    def get(self, tables: U32, keys: I64) -> tuple[Mask, Bytes]:
        """Read rows: bool[n], the keys that are stored, and uint8[m, width], their rows in order."""
        tables, keys = _names(tables, keys)
        found, rows = np.empty(len(keys), np.bool_), np.empty((len(keys), self.width), np.uint8)
        names = address(tables), address(keys), len(keys)
        count = _checked(self._library.log_get(self._handle, *names, address(found), address(rows)))
        return found, rows[:count]

    def erase(self, tables: U32, keys: I64) -> None:
        """Erase keys; missing keys are ignored."""
        tables, keys = _names(tables, keys)
        _checked(self._library.log_erase(self._handle, address(tables), address(keys), len(keys)))

    def clear(self, table: int) -> None:
        """Erase all keys of a table."""
        _checked(self._library.log_clear(self._handle, table))

    def scan(self, table: int, rows: int) -> Iterator[tuple[I64, Bytes]]:
        """Read all rows of a table as (int64[m], uint8[m, width]), m ≤ `rows`, in the order of the file.

        No call may change the table meanwhile. Four bytes a row are in memory.
        """
        slots = np.empty(self._library.log_rows_of(self._handle, table), np.uint32)
        _checked(self._library.log_slots(self._handle, table, address(slots)))
        for start in range(0, len(slots), rows):
            part = slots[start : start + rows]
            keys, values = np.empty(len(part), np.int64), np.empty((len(part), self.width), np.uint8)
            given = address(part), len(part)
            _checked(self._library.log_read(self._handle, *given, address(keys), address(values)))
            yield keys, values


def _names(tables: U32, keys: I64) -> tuple[U32, I64]:
    keys = contiguous(keys, np.int64, (None,))
    return contiguous(tables, np.uint32, (len(keys),)), keys


def _checked(result: int) -> int:
    if result >= 0:
        return result
    if result == -errno.ENOMEM:
        raise MemoryError("out of memory in a log of rows")
    raise OSError(-result, os.strerror(-result))


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    array, number, table = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
    signatures = {
        "log_new": [ctypes.c_int32, number, number, array],
        "log_delete": [array],
        "log_size": [array],
        "log_file_bytes": [array],
        "log_memory_bytes": [array],
        "log_put": [array, array, array, number, array],
        "log_get": [array, array, array, number, array, array],
        "log_erase": [array, array, array, number],
        "log_clear": [array, table],
        "log_rows_of": [array, table],
        "log_slots": [array, table, array],
        "log_read": [array, array, number, array, array],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, number
    library.log_delete.restype = None
    return library
