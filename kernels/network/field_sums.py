"""Host kernels of a first layer and FM over fields: sums, gradients and products of rows in one pass.

`models.fused.field_sums` has the formulas. Arrays are f32 and C-contiguous, but for rows of `out` and `grad`,
which may lie further apart. B examples, F fields, rows of W = 1 + K numbers, D dense features, H units.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from livectr.kernels.network.packed import KINDS, Factors, at, rows_at
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]


def field_sums(
    values: F32,
    scale: F32,
    weight: F32,
    dense: tuple[F32, F32, F32, F32] | None,
    out: F32,
    factors: Factors | None,
    of_dense: Factors | None,
) -> None:
    """Writes the partial results; products only where they have factors.

    Args:
        values: f32[B, F, W].
        scale: f32[F].
        weight: f32[F · W, H], zeros for the first number of a row.
        dense: x f32[B, D], those that the first layer takes f32[B, D], its weight f32[D, H], and the first
            order of x f32[D]; None: no dense features.
        out: f32[B, H + W].
        factors: of the rows' products; None: the caller computes them.
        of_dense: factors of the dense features' products; None: the caller computes them.

    Raises:
        MemoryError: no memory.
    """
    x, s, s_weight, u = dense if dense is not None else (None, None, None, None)
    sizes = _sizes(values, 0 if x is None else x.shape[1], weight.shape[1])
    numbers = [None if array is None else at(array) for array in (x, s, s_weight, u)]
    arguments = at(values), at(scale), at(weight), *numbers, *rows_at(out)
    if not _library().field_sums(sizes.ctypes.data, *arguments, KINDS[factors], KINDS[of_dense]):
        raise MemoryError("no memory for the first layer of a batch")


def field_gradients(
    values: F32, scale: F32, weight: F32, grad: F32, of_values: F32, of_scale: F32, factors: Factors | None
) -> None:
    """Writes the gradients of values and scale; the products' are added where they have factors.

    Args:
        values: as of `field_sums`.
        scale: as of `field_sums`.
        weight: as of `field_sums`.
        factors: as of `field_sums`.
        grad: f32[B, H + W], gradient of its `out`.
        of_values: f32[B, F, W].
        of_scale: f32[F].

    Raises:
        MemoryError: no memory.
    """
    sizes = _sizes(values, 0, weight.shape[1])
    arguments = at(values), at(scale), at(weight), *rows_at(grad), at(of_values), at(of_scale)
    if not _library().field_gradients(sizes.ctypes.data, *arguments, KINDS[factors]):
        raise MemoryError("no memory for the gradients of a batch")


def _sizes(values: F32, dense: int, hidden: int) -> npt.NDArray[np.int64]:
    return np.array([*values.shape, dense, hidden], np.int64)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number, kind = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.field_sums.restype = library.field_gradients.restype = ctypes.c_bool
    library.field_sums.argtypes = [*[pointer] * 9, number, kind, kind]
    library.field_gradients.argtypes = [*[pointer] * 5, number, pointer, pointer, kind]
    return library
