"""Parallel gather of rows, and sum by row; threads share the copies and the page faults of mapped files."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

Rows = npt.NDArray[Any]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


def gather_rows(sources: Sequence[Rows], source: I32, row: I32, out: Rows) -> None:
    """Gathers rows: out[i] = sources[source[i]][row[i]], or 0 where source[i] is negative.

    LIVECTR_THREADS share the rows.

    Args:
        sources: C-contiguous [·, width], of the type of `out`.
        source: int32[n], index into `sources`.
        row: int32[n], row of that source.
        out: [n, width], C-contiguous; it is overwritten.

    Raises:
        ValueError: arrays of other shapes or types.
        IndexError: a row that does not exist.
    """
    source, row = (np.ascontiguousarray(values, np.int32) for values in (source, row))
    if not len(source) == len(row) == len(out) or not out.flags.c_contiguous:
        raise ValueError("source, row and out must have one length, and out be contiguous")
    for array in sources:
        if array.shape[1:] != out.shape[1:] or array.dtype != out.dtype or not array.flags.c_contiguous:
            raise ValueError(f"rows are {array.dtype}{array.shape[1:]}, not {out.dtype}{out.shape[1:]}")
    if not out.size:
        return
    if source.max() >= len(sources):
        raise IndexError(f"source {source.max()} of {len(sources)}")
    used = source >= 0
    lengths = np.array([len(array) for array in sources], np.int64)
    if (row[used] < 0).any() or (row[used] >= lengths[source[used]]).any():
        raise IndexError("a row that is not there")
    starts = np.array([array.ctypes.data for array in sources], np.uint64)
    row_bytes = out.itemsize * out.size // len(out)
    _library().gather_rows(starts.ctypes.data, source, row, len(out), row_bytes, out.ctypes.data)


def add_rows(values: F32, index: I64, rows: int) -> F32:
    """Sums values by row: out[index[i]] += values[i], in the order of i. It is the gradient of a gather.

    LIVECTR_THREADS share the rows; bits do not depend on their number.

    Args:
        values: f32[n, width].
        index: i64[n], below `rows`.
        rows: R.

    Returns:
        f32[R, width], 0 for a row without values.

    Raises:
        ValueError: arrays of other shapes or types.
        IndexError: a row that does not exist.
    """
    values = contiguous(values, np.float32, (None, None))
    index = contiguous(index, np.int64, (len(values),))
    if len(index) and not 0 <= index.min() <= index.max() < rows:
        raise IndexError(f"rows are {index.min()} to {index.max()}, of {rows}")
    out = np.zeros((rows, values.shape[1]), np.float32)
    _library().add_rows(address(values), address(index), *values.shape, address(out), rows)
    return out


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    i32 = np.ctypeslib.ndpointer(np.int32, flags="C")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.gather_rows.restype = None
    library.gather_rows.argtypes = [pointer, i32, i32, number, number, pointer]
    library.add_rows.restype = None
    library.add_rows.argtypes = [pointer, pointer, number, number, pointer, number]
    return library
