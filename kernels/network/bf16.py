"""Host matrix products whose factors are rounded to bfloat16 and whose sums are float32."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.compiler import compile_host

F32 = npt.NDArray[np.float32]


def product(a: npt.NDArray[Any], b: F32, out: F32, *, add: bool = False) -> F32:
    """Writes a b into out, or adds it; LIVECTR_THREADS share the rows, and bits do not depend on their
    number.

    Args:
        a: f32[m, k], or u16[m, k], the bits of bfloat16 numbers; any strides, as of b.
        b: f32[k, n].
        out: f32[m, n], whose rows are contiguous.
        add: add to out instead of overwriting it.

    Raises:
        ValueError: arrays that do not fit.
        MemoryError: no memory.
    """
    (m, k), n = a.shape, b.shape[1]
    fits = b.shape[0] == k and out.shape == (m, n) and (out.size <= len(out) or out.strides[1] == 4)
    if not fits or a.dtype not in (np.float32, np.uint16) or not b.dtype == out.dtype == np.float32:
        raise ValueError(f"no product of {a.dtype}{a.shape}, {b.dtype}{b.shape} in {out.dtype}{out.shape}")
    if not (m and n and k):
        out[...] = out if add else 0
        return out
    of_a, of_b, of_out = (
        (array.ctypes.data, *(s // array.itemsize for s in array.strides)) for array in (a, b, out)
    )
    if not _library().bf16_product(
        of_a[0], a.dtype == np.uint16, *of_a[1:], *of_b, m, n, k, of_out[0], of_out[1], add
    ):
        raise MemoryError("no memory for a packed factor of a product")
    return out


def native() -> bool:
    """True if this CPU multiplies bfloat16 in hardware (AVX512-BF16); other CPUs are slower than in fp32."""
    return bool(_library().bf16_native())


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host('#include "network/bf16.hpp"\n', name="bf16")
    pointer, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
    library.bf16_product.restype = library.bf16_native.restype = flag
    library.bf16_product.argtypes = [
        *(pointer, flag, number, number),
        *(pointer, number, number),
        *(number, number, number),
        *(pointer, number, flag),
    ]
    library.bf16_native.argtypes = []
    return library
