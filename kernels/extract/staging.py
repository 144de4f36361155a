"""Staging of a batch's root columns in one buffer, compiled (`staging.cpp`)."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]


def stage_columns(
    roots: I64, batch: int, columns: npt.NDArray[np.int32], out: npt.NDArray[np.uint8], starts: I64
) -> int:
    """Copy root columns into a buffer. LIVECTR_THREADS share the work; the GIL is released.

    Args:
        roots: int64[R, 4], `Root` of each.
        batch: address of the batch, an ArrowArray of Arrow's C data interface.
        columns: int32[R], position of each root in the batch.
        out: uint8[·], aligned to 8 bytes.
        starts: int64[parts], overwritten with the beginning of each part in `out`.

    Returns:
        Size of all parts in bytes, or a negative `Failure`. If `out` is smaller, nothing is copied.
    """
    parts = address(out), len(out), address(starts)
    return int(_library().stage_columns(address(roots), len(roots), batch, address(columns), *parts))


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.stage_columns.restype = number
    library.stage_columns.argtypes = [pointer, number, pointer, pointer, pointer, number, pointer]
    return library
