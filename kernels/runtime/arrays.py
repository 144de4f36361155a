"""NumPy arrays as arguments of compiled functions: checks of type, shape and memory order."""

from typing import Any

import numpy as np
import numpy.typing as npt


def contiguous(array: npt.ArrayLike, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Converts an array to C order, a type and a shape. Floats never become integers: large keys would be
    rounded.

    Args:
        array: anything that NumPy reads.
        dtype: type of the result.
        shape: shape of the result; None: any length.

    Raises:
        ValueError: the array has another kind of type or another shape.
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


def aligned(rows: int, width: int) -> npt.NDArray[np.float32]:
    """Matrix f32[rows, width] whose first row begins with a line of the cache (64 bytes); not initialised."""
    memory = np.empty(rows * width + 16, np.float32)
    start = -address(memory) % 64 // 4
    return memory[start : start + rows * width].reshape(rows, width)
