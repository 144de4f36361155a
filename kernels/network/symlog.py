"""Numbers as networks take them, compiled (`network/symlog.hpp`)."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]


def symlog(x: F32) -> F32:
    """Map numbers: x for |x| ≤ 1, else sign(x) · (1 + ln |x|)."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty_like(x)
    _library().symlog(address(x), x.size, address(out))
    return out


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    library.symlog.restype = None
    library.symlog.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    return library
