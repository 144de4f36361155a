"""Host kernel of DIN's activation unit: attention pooling of lists of vectors by queries, forward and
backward.

`network/attention.hpp` is compiled for a unit's widths and number type; `models.attention` has the equations.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.compiler import compile_host

Reals = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]

_TYPES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
_FLAGS = ("-ffp-contract=fast",)  # as torch's products: rounding depends on the CPU


class AttentionKernel:
    """Activation unit with compiled widths. LIVECTR_THREADS share the examples; bits do not depend on their
    number.

    Args:
        dim: K, numbers of a vector.
        widths: units of the hidden layers; at least one.
        dtype: f32 or f64, of all arrays.

    Attributes:
        parameters: length of the parameter array: W_1 [4 dim, H_1], W_2 [H_1, H_2] … W_{L+1} [H_L, 1], then
            b_1 … b_{L+1}, then slopes of H_1 … H_L.

    Raises:
        ValueError: another type, or no hidden layer.
    """

    def __init__(self, dim: int, widths: Sequence[int], dtype: npt.DTypeLike) -> None:
        self.dim, self.dtype = dim, np.dtype(dtype)
        if self.dtype not in _TYPES or dim < 1 or not widths or min(widths) < 1:
            raise ValueError(f"no unit of {dim} numbers of {self.dtype} with layers of {list(widths)}")
        self._library = _compiled(dim, tuple(widths), _TYPES[self.dtype])
        self.parameters: int = self._library.attention_parameters()

    def forward(self, parameters: Reals, values: Reals, offsets: I64 | None, query: Reals) -> Reals:
        """Pools lists of vectors by queries.

        Args:
            parameters: [parameters].
            values: [nnz, dim].
            offsets: i64[B + 1] of the lists; None: all vectors are the list of every query.
            query: [B, dim].

        Returns:
            [B, dim].

        Raises:
            ValueError: arrays that do not fit.
            MemoryError: no memory.
        """
        p, values, query = self._checked(parameters, values, query)
        at = None if offsets is None else _rising(offsets, values, query)
        out = np.empty_like(query)
        if not self._library.attention_forward(
            *(address(p), address(values), len(values), None if at is None else address(at)),
            *(address(query), len(query), address(out)),
        ):
            raise MemoryError("no memory for the list of an activation unit")
        return out

    def backward(
        self, parameters: Reals, values: Reals, offsets: I64, query: Reals, grad_out: Reals
    ) -> tuple[Reals, Reals, Reals]:
        """Computes gradients; arguments as of `forward`.

        Args:
            parameters: [parameters].
            values: [nnz, dim].
            offsets: i64[B + 1] of the lists.
            query: [B, dim].
            grad_out: [B, dim], gradient of the result of `forward`.

        Returns:
            Gradients of values, query and parameters.
        """
        p, values, query = self._checked(parameters, values, query)
        offsets = _rising(offsets, values, query)
        grad_out = contiguous(grad_out, self.dtype, query.shape)
        grad_values, grad_query, grad_p = np.zeros_like(values), np.empty_like(query), np.empty_like(p)
        given = map(address, (p, values, offsets, query, grad_out))
        if not self._library.attention_backward(
            *given, len(query), *map(address, (grad_values, grad_query, grad_p))
        ):
            raise MemoryError("no memory for the gradients of an activation unit")
        return grad_values, grad_query, grad_p

    def _checked(self, parameters: Reals, values: Reals, query: Reals) -> tuple[Reals, Reals, Reals]:
        p = contiguous(parameters, self.dtype, (self.parameters,))
        values = contiguous(values, self.dtype, (None, self.dim))
        return p, values, contiguous(query, self.dtype, (None, self.dim))


def _rising(offsets: I64, values: Reals, query: Reals) -> I64:
    offsets = contiguous(offsets, np.int64, (len(query) + 1,))
    if offsets[0] < 0 or offsets[-1] > len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets must rise from 0 to at most {len(values)}, the number of vectors")
    return offsets


@functools.cache
def _compiled(dim: int, widths: tuple[int, ...], real: str) -> ctypes.CDLL:
    layers = ", ".join(map(str, widths))
    source = (
        f"using Real = {real};\n"
        f"constexpr int K = {dim}, HIDDEN = {len(widths)}, WIDTHS[] = {{{layers}}};\n"
        '#include "network/attention.hpp"\n'
    )
    library = compile_host(source, name="attention", flags=_FLAGS)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.attention_parameters.restype, library.attention_parameters.argtypes = number, []
    library.attention_forward.restype = ctypes.c_bool
    library.attention_forward.argtypes = [pointer, pointer, number, pointer, pointer, number, pointer]
    library.attention_backward.restype = ctypes.c_bool
    library.attention_backward.argtypes = [*[pointer] * 5, number, *[pointer] * 3]
    return library
