"""NumPy arrays as arguments of compiled functions: type, shape and memory order are checked here."""

from typing import Any

import numpy as np
import numpy.typing as npt


def contiguous(array: npt.ArrayLike, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """`array` as C-contiguous `dtype` of `shape` (None: any length). Raises ValueError.

    Integers are never read from floats: that would round large keys.
    """
    given = np.asarray(array)
    if given.size and not np.can_cast(given.dtype, dtype, casting="same_kind"):
        raise ValueError(f"expected {np.dtype(dtype)}, not {given.dtype}")
    if given.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, given.shape, strict=True)):
        raise ValueError(f"expected shape {shape}, not {given.shape}")
    return np.ascontiguousarray(given, dtype)


def address(array: npt.NDArray[Any]) -> int:
    """Address of the first element; the caller keeps the array alive."""
    return array.ctypes.data
