"""NumPy arrays as arguments of compiled functions: checks of type, shape and memory order."""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Checked: TypeAlias = tuple[npt.NDArray[Any], np.dtype[Any], int | None]
"""Array with the type and the length that it must have; None: any length."""


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


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype, _view.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_READ = 0x100
"""`PyBUF_READ`."""


def copied(at: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
    """Copy of `count` numbers at an address."""
    return np.frombuffer(_view(at, np.dtype(dtype).itemsize * count, _READ), dtype).copy()


#: copy of `count` bytes at an address
bytes_at: Callable[[int, int], bytes] = ctypes.pythonapi.PyBytes_FromStringAndSize
ctypes.pythonapi.PyBytes_FromStringAndSize.restype = ctypes.py_object
ctypes.pythonapi.PyBytes_FromStringAndSize.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]


def addresses(arrays: Iterable[Checked]) -> list[int]:
    """Addresses of arrays that a compiled function takes as they are; the caller keeps them alive.

    Args:
        arrays: each with its type and length.

    Raises:
        ValueError: an array has another type or length, or is not in C order.
    """
    found = []
    for array, dtype, length in arrays:
        if array.dtype != dtype or not array.flags.c_contiguous or length not in (None, len(array)):
            raise ValueError(f"an array of {array.dtype}{array.shape}, not of {length or 'any'} {dtype}")
        found.append((_at(id(array)).data or 0) if _FAST else array.ctypes.data)
    return found


def aligned(rows: int, width: int) -> npt.NDArray[np.float32]:
    """Matrix f32[rows, width] whose first row begins with a line of the cache (64 bytes); not initialised."""
    memory = np.empty(rows * width + 16, np.float32)
    start = -address(memory) % 64 // 4
    return memory[start : start + rows * width].reshape(rows, width)
