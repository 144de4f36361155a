"""Partial results of items by key: Python interface of `request/partials.hpp`."""

from __future__ import annotations

import ctypes
import functools
import weakref

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, aligned, contiguous
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


class Partials:
    """Partial results f32[S] of at most `most` items; thread-safe.

    Compiled calls read them by the handle.

    Attributes:
        values: f32[most, S]; a partial result never changes.
    """

    def __init__(self, most: int, size: int) -> None:
        self.values: F32 = aligned(most, size)
        self._uses: U32 = np.zeros(most, np.uint32)
        self._calls = _library()
        handle = self._calls.partials_new(address(self.values), address(self._uses), most, size)
        if not handle:
            raise MemoryError("no memory for an index of partial results")
        self.handle: int = handle
        weakref.finalize(self, self._calls.partials_delete, handle)

    def find(self, keys: I64) -> I64:
        """Addresses i64[n] of the partial results of keys i64[n]; 0: there is none.

        Each partial result that is found has one more use.
        """
        keys, out = contiguous(keys, np.int64, (None,)), np.empty(len(keys), np.int64)
        self._calls.partials_find(self.handle, address(keys), len(keys), address(out))
        return out

    def add(self, keys: I64, partials: F32, uses: int) -> I64:
        """Add partial results f32[n, S] of those of the keys i64[n] that are new, as far as there is room.

        Args:
            keys: i64[n].
            partials: f32[n, S].
            uses: with which each begins.

        Returns:
            Places i64[m] of the added among the n.
        """
        keys = contiguous(keys, np.int64, (None,))
        partials = contiguous(partials, np.float32, (len(keys), self.values.shape[1]))
        taken = np.empty(len(keys), np.int64)
        count = self._calls.partials_add(
            self.handle, address(keys), len(keys), address(partials), uses, address(taken)
        )
        if count < 0:
            raise MemoryError("no memory for an index of partial results")
        return taken[:count]

    def uses(self, count: int) -> U32:
        """Uses u32[count] of the first `count` items, in the order in which they were added."""
        out = np.empty(count, np.uint32)
        self._calls.partials_uses(self.handle, count, address(out))
        return out


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    handle, number, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
    library.partials_new.restype, library.partials_new.argtypes = handle, [handle, handle, number, number]
    library.partials_delete.restype, library.partials_delete.argtypes = None, [handle]
    library.partials_find.restype, library.partials_find.argtypes = number, [handle, handle, number, handle]
    library.partials_add.restype = number
    library.partials_add.argtypes = [handle, handle, number, handle, word, handle]
    library.partials_uses.restype, library.partials_uses.argtypes = None, [handle, number, handle]
    return library
