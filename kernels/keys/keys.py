"""Hashed keys of several columns, and dense numbers of keys, for joins and look-ups."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]

MISSING = 0xFFFFFFFF
"""Number of an unknown key."""


def combine_keys(keys: I64, others: I64) -> I64:
    """Combines two keys to one, int64[n]; the order matters. Raises ValueError for different lengths."""
    if len(keys) != len(others):
        raise ValueError("keys differ in number")
    combined = keys.copy()
    _library().combine_keys(combined, others, len(combined))
    return combined


def hash_texts(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32]) -> I64:
    """XXH64 of each text, int64[n].

    Args:
        data: uint8[m], the bytes of all texts.
        offsets: int32[n + 1], where each text begins; offsets[n] is the end of the last.
    """
    keys = np.empty(len(offsets) - 1, np.int64)
    _library().hash_texts(data, offsets, len(keys), keys)
    return keys


class KeyNumbers:
    """Dictionary of keys: numbers 0, 1, 2… in the order of first sight."""

    def __init__(self) -> None:
        self._calls = _library()
        self._handle = self._calls.numbers_new()
        self._count = 0

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._calls.numbers_free(handle)

    def __len__(self) -> int:
        return self._count

    @property
    def handle(self) -> int:
        """Address of the `Numbers` of `keys/numbers.hpp`; the caller keeps `self` alive."""
        return int(self._handle)

    def find(self, keys: I64) -> U32:
        """Numbers uint32[n] of keys int64[n]; MISSING for an unknown key."""
        keys, numbers = contiguous(keys, np.int64, (None,)), np.empty(len(keys), np.uint32)
        self._calls.numbers_find(self._handle, address(keys), len(keys), address(numbers))
        return numbers

    def rows(self, keys: I64, row_of: I64, first: int) -> tuple[U8, npt.NDArray[np.int32], int]:
        """Find the rows of keys, as numbers less `first` and a bitmap.

        Args:
            keys: int64[n].
            row_of: int64[numbers], row of each number; negative: none.
            first: the least row.

        Returns:
            Bitmap of the keys that have a row; their rows less `first`, int32[n], 0 where there is none;
            number of keys without a row.
        """
        keys, out = contiguous(keys, np.int64, (None,)), np.empty(len(keys), np.int32)
        valid = np.empty((len(keys) + 7) // 8, np.uint8)
        absent: int = self._calls.numbers_rows(
            self._handle, address(keys), len(keys), address(row_of), first, address(out), address(valid)
        )
        return valid, out, absent

    def assign(self, keys: I64) -> U32:
        """Numbers uint32[n] of keys int64[n]; an unknown key gets the next number."""
        numbers = np.empty(len(keys), np.uint32)
        self._count = int(self._calls.numbers_assign(self._handle, keys, len(keys), numbers))
        return numbers


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    u32 = np.ctypeslib.ndpointer(np.uint32, flags="C")
    bytes_, i32 = np.ctypeslib.ndpointer(np.uint8, flags="C"), np.ctypeslib.ndpointer(np.int32, flags="C")
    handle, number = ctypes.c_void_p, ctypes.c_int64
    library.combine_keys.argtypes = [i64, i64, number]
    library.hash_texts.argtypes = [bytes_, i32, number, i64]
    library.numbers_new.restype = handle
    library.numbers_free.argtypes = [handle]
    library.numbers_find.argtypes = [handle, handle, number, handle]
    library.numbers_rows.restype = number
    library.numbers_rows.argtypes = [handle, handle, number, handle, number, handle, handle]
    library.numbers_assign.restype, library.numbers_assign.argtypes = (
        ctypes.c_uint32,
        [handle, i64, number, u32],
    )
    return library
