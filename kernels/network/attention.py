"""Host kernel of DIN's activation unit, forward and backward.

It pools lists of vectors by queries, with attention.

`network/attention.cpp` is one library for all units; `models.attention` has the equations.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

Reals = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]

_SUFFIXES = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}


class AttentionKernel:
    """Activation unit of any widths.

    LIVECTR_THREADS share the examples; bits do not depend on their number.

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
        if self.dtype not in _SUFFIXES or dim < 1 or not widths or min(widths) < 1:
            raise ValueError(f"no unit of {dim} numbers of {self.dtype} with layers of {list(widths)}")
        library, suffix = _library(), _SUFFIXES[self.dtype]
        self._forward = getattr(library, f"attention_forward_{suffix}")
        self._backward = getattr(library, f"attention_backward_{suffix}")
        self._widths = np.array(widths, np.int64)
        self._unit = dim, address(self._widths), len(widths)
        layers = itertools.pairwise((4 * dim, *widths, 1))
        self.parameters = sum(inputs * units + units for inputs, units in layers) + sum(widths)

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
        arrays = address(p), address(values), *lists.given(), address(query), len(query)
        if not self._forward(*self._unit, *arrays, address(out)):
            raise MemoryError("no memory for the list of an activation unit")
        return out

    def pooled(self, parameters: Reals, values: Reals, query: Reals) -> Reals:
        """Pools a list by every query; bits and arguments as of `forward`, whose lists all are `values`.

        Raises:
            ValueError: arrays that do not fit.
            MemoryError: no memory.
        """
        p, values, query = self._checked(parameters, values, query)
        ends, out = np.array(((0, len(values)), (0, len(query))), np.int64), np.empty_like(query)
        of_samples = address(ends) + 16
        arrays = address(p), address(values), address(ends), of_samples, None, 1, address(query), len(query)
        if not self._forward(*self._unit, *arrays, address(out)):
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
        arrays = address(p), address(values), *lists.given(), address(query), len(query)
        if not self._backward(
            *self._unit, *arrays, *map(address, (grad_out, grad_values, grad_query, grad_p))
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
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for suffix in _SUFFIXES.values():
        forward = getattr(library, f"attention_forward_{suffix}")
        backward = getattr(library, f"attention_backward_{suffix}")
        forward.restype = backward.restype = ctypes.c_bool
        given = [number, pointer, number, *[pointer] * 5, number, pointer, number]
        forward.argtypes = [*given, pointer]
        backward.argtypes = [*given, *[pointer] * 4]
    return library
