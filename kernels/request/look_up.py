"""Keys and outcomes of compiled calls that look up rows: Python interface of `request/look_up.hpp`."""

from __future__ import annotations

import ctypes
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.native import checked

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

DONE: Final = 0
MISSING_ROWS: Final = 1
"""A key has no row in memory."""
MISSING_ITEMS: Final = 2
"""An item has no partial result, or no vector, in memory."""
SUPERSEDED: Final = 3
"""The rows are of another version."""
LATE: Final = 4
"""The deadline passed while the call waited for a writer of the rows."""
_NO_MEMORY: Final = 5


class Ragged(Protocol):
    """Ragged keys of some fields of some rows, field-major."""

    @property
    def offsets(self) -> I32:
        """i32[fields * rows + 1]."""

    @property
    def keys(self) -> I64:
        """i64[nnz]."""


class Keys(ctypes.Structure):
    """`Keys` of request/look_up.hpp."""

    _fields_ = [
        ("shared_offsets", ctypes.c_void_p),
        ("shared_keys", ctypes.c_void_p),
        ("own_offsets", ctypes.c_void_p),
        ("own_keys", ctypes.c_void_p),
        ("shared_count", ctypes.c_int64),
        ("own_count", ctypes.c_int64),
        ("rows", ctypes.c_int64),
    ]


def refused(outcome: int) -> int:
    """Raise the error of a call that has none of the outcomes above.

    Raises:
        MemoryError: no memory.
        ValueError: offsets that do not fit.
    """
    return checked(-1 if outcome == _NO_MEMORY else -3)
