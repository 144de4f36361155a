"""Look-up rows in memory by column: Python interface of `request/lookup.hpp`."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.request.parse import element_of
from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.arrow import exported
from livectr.kernels.runtime.library import kernel_library, quick_library

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_NO_MEMORY = -1


class StoredRows:
    """Rows by slot, and the slot of each key. Slot 0 is the row that was never read; thread-safe.

    Rows are only appended: a changed row gets another slot. Compiled calls read them by the handle.

    Args:
        types: of the columns.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        elements = np.array([element_of(kind) for kind in types], np.int64).reshape(-1, 2)
        self._own(_library().lookup_new(address(elements), len(types)), types)
        self.add(np.empty(0, np.int64), [pa.nulls(1, kind) for kind in types], float("-inf"))  # slot 0

    def _own(self, handle: int | None, types: Sequence[pa.DataType]) -> None:
        if not handle:
            raise MemoryError("no memory for look-up rows")
        self.handle, self._types = handle, tuple(types)
        self._names = [str(place) for place in range(len(types))]
        weakref.finalize(self, _library().lookup_delete, handle)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Slots with garbage, keys, and the most bytes of texts or items of lists that a column has."""
        found = np.empty(3, np.int64)
        _quick_calls().lookup_sizes(self.handle, address(found))
        slots, keys, extent = found.tolist()
        return slots, keys, extent

    def find(self, keys: I64) -> tuple[I32, F64]:
        """Slots i32[n] of keys i64[n], and the instants f64[n] when they were read."""
        keys, n = contiguous(keys, np.int64, (None,)), len(keys)
        slots, read_at = np.empty(n, np.int32), np.empty(n)
        _library().lookup_find(self.handle, address(keys), n, address(slots), address(read_at))
        return slots, read_at

    def take(self, column: int, slots: I32) -> pa.Array:
        """Values of a column at slots i32[n]."""
        slots, kind, out = contiguous(slots, np.int32, (None,)), self._types[column], ctypes.c_void_p()
        _check(_library().lookup_take(self.handle, column, address(slots), len(slots), ctypes.byref(out)))
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return pa.Array._import_from_c(out.value, pa.dictionary(pa.int32(), kind)).dictionary_decode()
        return pa.Array._import_from_c(out.value, kind)

    def add(self, keys: I64, columns: Sequence[pa.Array], now: float) -> None:
        """Add rows of distinct keys i64[n] that were read at `now`, given by column.

        Raises:
            MemoryError: no memory, or texts of more than 2 GiB in a column; nothing is added.
        """
        keys = contiguous(keys, np.int64, (None,))
        batch = pa.RecordBatch.from_arrays(columns, names=self._names)
        _owner, at = exported(batch)
        _check(_library().lookup_add(self.handle, address(keys), len(keys), at, now))

    def touch(self, slots: I32, now: float) -> None:
        """Note that rows at slots i32[n] were read again at `now`."""
        slots = contiguous(slots, np.int32, (None,))
        _library().lookup_touch(self.handle, address(slots), len(slots), now)

    def expire(self, keys: I64 | None) -> None:
        """Let the rows of keys i64[n] be read again; None: all rows."""
        if keys is None:
            _library().lookup_expire(self.handle, None, 0)
        else:
            keys = contiguous(keys, np.int64, (None,))
            _library().lookup_expire(self.handle, address(keys), len(keys))

    def moved(self) -> tuple[StoredRows, I32]:
        """Copy of the live rows as they are now, and the slots here of its slots."""
        most = self.sizes[1]
        slots, copy = np.zeros(most + 1, np.int32), StoredRows.__new__(StoredRows)
        copy._own(_library().lookup_moved(self.handle, address(slots), most), self._types)
        return copy, slots


def _check(outcome: int) -> None:
    if outcome == _NO_MEMORY:
        raise MemoryError("no memory for look-up rows, or too many texts or lists in a column of theirs")
    if outcome:
        raise ValueError("slots or columns that look-up rows do not have")


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number, instant = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    library.lookup_new.restype, library.lookup_new.argtypes = pointer, [pointer, number]
    library.lookup_delete.restype, library.lookup_delete.argtypes = None, [pointer]
    library.lookup_find.restype = None
    library.lookup_find.argtypes = [pointer, pointer, number, pointer, pointer]
    library.lookup_add.restype = number
    library.lookup_add.argtypes = [pointer, pointer, number, pointer, instant]
    library.lookup_touch.restype, library.lookup_touch.argtypes = None, [pointer, pointer, number, instant]
    library.lookup_expire.restype, library.lookup_expire.argtypes = None, [pointer, pointer, number]
    library.lookup_moved.restype, library.lookup_moved.argtypes = pointer, [pointer, pointer, number]
    library.lookup_take.restype = number
    library.lookup_take.argtypes = [pointer, number, pointer, number, pointer]
    return library


@functools.cache
def _quick_calls() -> ctypes.PyDLL:
    quick = quick_library()
    quick.lookup_sizes.restype, quick.lookup_sizes.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
    return quick
