"""Host matrix products of packed factors with float32 sums: factors are float32, or rounded to bfloat16."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]
Factors = Literal["fp32", "bf16"]
KINDS: dict[Factors | None, int] = {None: 0, "fp32": 1, "bf16": 2}
"""Name → `Factors` of packed.hpp."""


def product(a: npt.NDArray[Any], b: F32, out: F32, factors: Factors, *, add: bool = False) -> F32:
    """Writes a b into out, or adds it.

    LIVECTR_THREADS share the rows, and bits do not depend on their number.

    Args:
        a: f32[m, k]; f16[m, k] with fp32 factors; u16[m, k], the bits of bfloat16 numbers, with bf16 factors.
            Any strides, as of b.
        b: f32[k, n].
        out: f32[m, n], whose rows are contiguous.
        factors: "bf16" rounds a and b to bfloat16.
        add: add to out instead of overwriting it.

    Raises:
        ValueError: arrays that do not fit.
        MemoryError: no memory.
    """
    (m, k), n = a.shape, b.shape[1]
    fits = b.shape[0] == k and out.shape == (m, n) and (out.size <= len(out) or out.strides[1] == 4)
    kinds = {np.dtype(np.float32): 0, np.dtype(np.float16): 3}
    if factors == "bf16":
        kinds = {np.dtype(np.float32): 1, np.dtype(np.uint16): 2}
    if not (fits and a.dtype in kinds and b.dtype == out.dtype == np.float32):
        raise ValueError(f"no product of {a.dtype}{a.shape}, {b.dtype}{b.shape} in {out.dtype}{out.shape}")
    if not (m and n and k):
        out[...] = out if add else 0
        return out
    of_a, of_b, of_out = (
        (array.ctypes.data, *(s // array.itemsize for s in array.strides)) for array in (a, b, out)
    )
    if not _library().packed_product(kinds[a.dtype], *of_a, *of_b, m, n, k, of_out[0], of_out[1], add):
        raise MemoryError("no memory for a packed factor of a product")
    return out


def at(array: npt.NDArray[Any]) -> int:
    """Address of a contiguous f32 array. Raises ValueError for another."""
    if not array.flags.c_contiguous or array.dtype != np.float32:
        raise ValueError(
            f"the kernel needs contiguous float32, not {array.dtype} with strides {array.strides}"
        )
    return array.ctypes.data


def rows_at(array: F32) -> tuple[int, int]:
    """Address, and numbers from row to row, of an f32 array whose rows are contiguous. Raises ValueError."""
    if array.dtype != np.float32 or (array.size > len(array) and array.strides[1] != 4):
        raise ValueError(f"the kernel needs contiguous rows of float32, not strides {array.strides}")
    return array.ctypes.data, array.strides[0] // 4


def native(factors: Factors) -> bool:
    """True if the kernel uses this CPU's own instructions: FMA for fp32, AVX512-BF16 for bf16."""
    return bool(_library().packed_level() >= {"fp32": 1, "bf16": 3}[factors])


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.packed_product.restype = ctypes.c_bool
    library.packed_level.restype = ctypes.c_int
    library.packed_product.argtypes = [
        *(ctypes.c_int, pointer, number, number),
        *(pointer, number, number),
        *(number, number, number),
        *(pointer, number, ctypes.c_bool),
    ]
    library.packed_level.argtypes = []
    return library
