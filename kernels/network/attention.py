"""Host kernel of DIN's activation unit: attention pooling of lists of vectors by queries, forward and
backward.

`network/attention.hpp` is compiled for a unit's widths and number type; `models.attention` has the equations.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
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

    def forward(
        self, parameters: Reals, values: Reals, offsets: I64, query: Reals, list_of: I64 | None = None
    ) -> Reals:
        """Pools lists of vectors by queries.

        Args:
            parameters: [parameters].
            values: [nnz, dim].
            offsets: i64[L + 1] of the lists.
            query: [B, dim].
            list_of: i64[B], list of each query; None: query b has list b. The bits are those of copies.

        Returns:
            [B, dim].

        Raises:
            ValueError: arrays that do not fit.
            MemoryError: no memory.
        """
        p, values, query = self._checked(parameters, values, query)
        lists = _Lists.of(offsets, list_of, len(values), len(query))
        out = np.empty_like(query)
        if not self._library.attention_forward(
            address(p), address(values), *lists.given(), address(query), len(query), address(out)
        ):
            raise MemoryError("no memory for the list of an activation unit")
        return out

    def backward(
        self,
        parameters: Reals,
        values: Reals,
        offsets: I64,
        query: Reals,
        grad_out: Reals,
        list_of: I64 | None = None,
    ) -> tuple[Reals, Reals, Reals]:
        """Computes gradients; arguments as of `forward`.

        Args:
            parameters: [parameters].
            values: [nnz, dim].
            offsets: i64[L + 1] of the lists.
            query: [B, dim].
            grad_out: [B, dim], gradient of the result of `forward`.
            list_of: i64[B] or None.

        Returns:
            Gradients of values, query and parameters.
        """
        p, values, query = self._checked(parameters, values, query)
        lists = _Lists.of(offsets, list_of, len(values), len(query))
        grad_out = contiguous(grad_out, self.dtype, query.shape)
        grad_values, grad_query, grad_p = np.zeros_like(values), np.empty_like(query), np.empty_like(p)
        if not self._library.attention_backward(
            *(address(p), address(values), *lists.given(), address(query), len(query), address(grad_out)),
            *map(address, (grad_values, grad_query, grad_p)),
        ):
            raise MemoryError("no memory for the gradients of an activation unit")
        return grad_values, grad_query, grad_p

    def _checked(self, parameters: Reals, values: Reals, query: Reals) -> tuple[Reals, Reals, Reals]:
        p = contiguous(parameters, self.dtype, (self.parameters,))
        values = contiguous(values, self.dtype, (None, self.dim))
        return p, values, contiguous(query, self.dtype, (None, self.dim))


@dataclass(frozen=True)
class _Lists:
    """L lists, and the samples of each.

    Attributes:
        offsets: i64[L + 1] of the lists' vectors.
        starts: i64[L + 1] of the lists' samples in `order`; None: sample b has list b.
        order: i64[B], samples by list; None: they are in order.
    """

    offsets: I64
    starts: I64 | None = None
    order: I64 | None = None

    @classmethod
    def of(cls, offsets: I64, list_of: I64 | None, vectors: int, samples: int) -> _Lists:
        """Lists of `samples` queries. Raises ValueError where they do not fit."""
        offsets = contiguous(offsets, np.int64, (None if list_of is not None else samples + 1,))
        if not len(offsets) or offsets[0] < 0 or offsets[-1] > vectors or (np.diff(offsets) < 0).any():
            raise ValueError(f"offsets must rise from 0 to at most {vectors}, the number of vectors")
        if list_of is None:
            return cls(offsets)
        lists, list_of = len(offsets) - 1, contiguous(list_of, np.int64, (samples,))
        if samples and not 0 <= list_of.min() <= list_of.max() < lists:
            raise ValueError(f"list_of must be from 0 to {lists - 1}, the last of the lists")
        starts = np.r_[0, np.cumsum(np.bincount(list_of, minlength=lists))].astype(np.int64)
        return cls(offsets, starts, np.argsort(list_of, kind="stable") if lists > 1 else None)

    def given(self) -> tuple[int | None, int | None, int | None, int]:
        """Arguments of the compiled functions."""
        starts, order = (None if array is None else address(array) for array in (self.starts, self.order))
        return address(self.offsets), starts, order, len(self.offsets) - 1


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
    library.attention_forward.argtypes = [*[pointer] * 5, number, pointer, number, pointer]
    library.attention_backward.restype = ctypes.c_bool
    library.attention_backward.argtypes = [*[pointer] * 5, number, pointer, number, *[pointer] * 4]
    return library
