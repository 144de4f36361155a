"""Depth of JSON texts: finds texts whose objects and lists are nested more deeply than a limit."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]


def deeper_than(texts: bytes, starts: I64, stops: I64, limit: int) -> I64:
    """Indices int64[m] of the texts that are nested more deeply than `limit`.

    Args:
        texts: all texts, concatenated.
        starts: int64[n], first byte of each text.
        stops: int64[n], end of each text.
        limit: largest depth.
    """
    rows = np.empty(len(starts), np.int64)
    count = _library().json_deeper(np.frombuffer(texts, np.uint8), starts, stops, len(starts), limit, rows)
    return rows[:count]


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    u8 = np.ctypeslib.ndpointer(np.uint8, flags="C")
    i64 = np.ctypeslib.ndpointer(np.int64, flags="C")
    number = ctypes.c_int64
    library.json_deeper.restype = number
    library.json_deeper.argtypes = [u8, i64, i64, number, number, i64]
    return library
