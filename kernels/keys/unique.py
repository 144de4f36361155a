"""Deduplication of keys in many segments at once (`keys/unique.hpp`)."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Unique:
    """Unique keys of S segments, U in all; segment s has keys[bounds[s] : bounds[s + 1]].

    Args:
        keys: i64[U], those of a segment in the order of first appearance.
        bounds: i64[S + 1].
        index: u32[nnz], of each given key: its place within its segment's unique keys.
    """

    keys: I64
    bounds: I64
    index: U32


def unique_segments(keys: I64, bounds: I64) -> Unique:
    """Deduplicates the keys of each segment keys[bounds[s] : bounds[s + 1]]. O(nnz).

    LIVECTR_THREADS share the segments; the result does not depend on their number.

    Args:
        keys: i64[nnz].
        bounds: i64[S + 1], rising from 0 to nnz; less than 2³¹ keys per segment.

    Raises:
        ValueError: bounds do not fit.
        MemoryError: no memory.
    """
    keys = contiguous(keys, np.int64, (None,))
    bounds = contiguous(bounds, np.int64, (None,))
    sizes = np.diff(bounds)
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(keys) or (sizes < 0).any():
        raise ValueError(f"bounds must rise from 0 to the number of keys, {len(keys)}")
    if len(sizes) and sizes.max() >= 1 << 31:
        raise ValueError(
            f"a segment of {sizes.max()} keys; the most is {(1 << 31) - 1}: take smaller batches"
        )
    unique, ends, index = np.empty(len(keys), np.int64), np.empty_like(bounds), np.empty(len(keys), np.uint32)
    given, made = (address(keys), address(bounds)), (address(unique), address(ends), address(index))
    if _library().unique_segments(*given, len(sizes), *made) < 0:
        raise MemoryError("out of memory for the unique keys of a batch")
    return Unique(unique[: ends[-1]], ends, index)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    array = ctypes.c_void_p
    library.unique_segments.restype = ctypes.c_int32
    library.unique_segments.argtypes = [array, array, ctypes.c_int64, array, array, array]
    return library
