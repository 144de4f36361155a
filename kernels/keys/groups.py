"""Groups of equal rows of a batch, compared exactly by their bytes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Bytes:
    """Column as bytes.

    Args:
        values: C-contiguous, an item per element.
        offsets: int32[rows + 1], row i has items offsets[i] to offsets[i + 1]; None: row i is item i.
    """

    values: npt.NDArray[Any]
    offsets: I32 | None = None


def group_rows(columns: Sequence[Bytes], rows: int) -> tuple[I32, I32]:
    """Groups rows that are equal, byte for byte, in every column. O(bytes); a hash only finds candidates.

    Args:
        columns: columns of `rows` rows.
        rows: number of rows.

    Returns:
        Group of each row, int32[rows], and first row of each group, int32[G]. Groups are numbered in the
            order of
        their first rows.
    """
    index, first = np.empty(rows, np.int32), np.empty(rows, np.int32)
    kept = [
        (np.ascontiguousarray(c.values), None if c.offsets is None else np.ascontiguousarray(c.offsets))
        for c in columns
    ]
    described = (_Column * len(kept))(
        *(
            _Column(values.ctypes.data, None if offsets is None else offsets.ctypes.data, values.itemsize)
            for values, offsets in kept
        )
    )
    count = _library().group_rows(described, len(kept), rows, index, first)
    return index, first[:count].copy()


class _Column(ctypes.Structure):
    _fields_ = (("values", ctypes.c_void_p), ("offsets", ctypes.c_void_p), ("width", ctypes.c_int64))


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    i32 = np.ctypeslib.ndpointer(np.int32, flags="C")
    library.group_rows.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, i32, i32]
    library.group_rows.restype = ctypes.c_int64
    return library
