"""NumPy arrays as arguments of compiled functions: checks of type, shape and memory order."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt


class _ArrayHead(ctypes.Structure):
    """First members of NumPy's `PyArrayObject`, whose layout its C API promises."""

    _fields_ = [("references", ctypes.c_ssize_t), ("type", ctypes.c_void_p), ("data", ctypes.c_void_p)]


_at = _ArrayHead.from_address
_probe = np.arange(3)
_FAST = _at(id(_probe)).data == _probe.ctypes.data
"""False where Python's objects begin in another way (free-threaded builds)."""


def contiguous(array: npt.ArrayLike, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Converts an array to C order, a type and a shape.

    Floats never become integers: large keys would be rounded.

    Args:
        array: anything that NumPy reads.
        dtype: type of the result.
        shape: shape of the result; None: any length.

    Raises:
        ValueError: the array has another kind of type or another shape.
    """
    if type(array) is np.ndarray and array.dtype == dtype and array.flags.c_contiguous:
        given: npt.NDArray[Any] = array
        if given.shape == shape or (shape == (None,) and given.ndim == 1):
            return given
    given = np.asarray(array)
    if given.size and not np.can_cast(given.dtype, dtype, casting="same_kind"):
        raise ValueError(f"expected {np.dtype(dtype)}, not {given.dtype}")
    if given.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, given.shape, strict=True)):
        raise ValueError(f"expected shape {shape}, not {given.shape}")
    return np.ascontiguousarray(given, dtype)


def address(array: npt.NDArray[Any]) -> int:
    """Address of the first element; the caller keeps the array alive."""
    return (_at(id(array)).data or 0) if _FAST else array.ctypes.data


def aligned(rows: int, width: int) -> npt.NDArray[np.float32]:
    """Matrix f32[rows, width] whose first row begins with a line of the cache (64 bytes); not initialised."""
    memory = np.empty(rows * width + 16, np.float32)
    start = -address(memory) % 64 // 4
    return memory[start : start + rows * width].reshape(rows, width)
