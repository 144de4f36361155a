"""Forward pass of a CTR network on the host, compiled: rows of fields in, logits out."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """Sizes of a network.

    Args:
        fields: F, number of fields.
        dim: K, numbers of a field's vector.
        dense: numbers of each source of dense features, which the first layer takes by symlog.
        blocks: numbers of each other source.
        layers: H₁ … H_L = 1, units of the MLP's layers; () without an MLP.
        wide: there is a first order.
        pairs: there is FM's second order.
        prelu: layers are activated by PReLU, else ReLU.
    """

    fields: int
    dim: int
    dense: tuple[int, ...]
    blocks: tuple[int, ...]
    layers: tuple[int, ...]
    wide: bool
    pairs: bool
    prelu: bool

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of each source: the fields, then the others."""
        return (*[self.dim] * self.fields, *self.others)

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of each source besides fields."""
        return (*self.dense, *self.blocks)


class Sources:
    """Parts of the inputs of some rows, as they lie in memory."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._words: list[tuple[int, int, int]] = []
        self._kept: list[F32] = []

    def add_fields(self, values: F32, fields: Sequence[int], first: int, read: Set[int]) -> None:
        """Add fields.

        Args:
            values: f32[rows, len(fields), D].
            fields: their numbers.
            first: index of K numbers of each vector on the last axis; a first order has its weight before it.
            read: fields that the network reads; others are left out.
        """
        shape = self._shape
        _, count, width = values.shape
        if count != len(fields) or first + shape.dim > width or first < shape.wide:
            raise ValueError(f"{values.shape} values from {first} on are no {len(fields)} fields of {shape}")
        start = self._start(values) + 4 * first
        self._words += [(start + 4 * width * i, count * width, f) for i, f in enumerate(fields) if f in read]

    def add(self, values: F32, number: int = 0) -> None:
        """Add another source, the `number`th of `Shape.others`; values f32[rows, K]."""
        if values.ndim != 2 or values.shape[1] != self._shape.others[number]:
            raise ValueError(f"{values.shape} numbers, but {self._shape.others[number]} were expected")
        self._words.append((self._start(values), values.shape[1], self._shape.fields + number))

    def _start(self, values: F32) -> int:
        values = np.ascontiguousarray(values, np.float32)
        self._kept.append(values)
        return address(values)

    def table(self) -> npt.NDArray[np.int64]:
        """The `Source` structs, i64[n, 3]. The arrays must outlive the call that reads them."""
        return np.array(self._words, np.int64).reshape(-1, 3)

    def rows(self) -> set[int]:
        """Numbers of rows of the sources."""
        return {len(values) for values in self._kept}


@dataclass(frozen=True)
class Kept:
    """Partial results of some rows, each wherever it lies in memory.

    Args:
        addresses: i64[rows], of each row's S numbers.
        arrays: what must stay alive meanwhile.
    """

    addresses: npt.NDArray[np.int64]
    arrays: tuple[F32, ...]

    @staticmethod
    def of(partials: F32) -> Kept:
        """The rows of partial results f32[rows, S]."""
        partials = np.ascontiguousarray(partials)
        rows, size = partials.shape
        return Kept(address(partials) + 4 * size * np.arange(rows), (partials,))


class ForwardNetwork:
    """Network with its parameters, packed for the host; thread-safe.

    Args:
        shape: sizes.
        parameters: in this order: b; with a first order s[F], and u[K_s] of each other source; with an MLP
            W_s[K_s, H₁] of each source, b₁, slopes₁, then W_l, b_l and slopes_l of each layer. The last layer
            has no slopes, and none has without `prelu`.

    Raises:
        ValueError: another number of parameters.
        MemoryError: no memory.
    """

    def __init__(self, shape: Shape, parameters: Sequence[F32]) -> None:
        self.shape = shape
        numbers = np.concatenate([np.ravel(p) for p in parameters]).astype(np.float32, copy=False)
        if len(numbers) != (expected := _parameters(shape)):
            raise ValueError(f"{len(numbers)} parameters were given for {expected} of {shape}")
        self._library = _library()
        sizes, depths = np.array(shape.layers, np.int64), np.array(shape.depths, np.int64)
        self.handle: int = self._library.forward_new(
            *(address(sizes), len(sizes), address(depths), len(depths)),
            *(
                shape.fields,
                len(shape.dense),
                shape.dim,
                shape.wide,
                shape.pairs,
                shape.prelu,
                address(numbers),
            ),
        )
        if not self.handle:
            raise MemoryError("no memory for a packed network")
        weakref.finalize(self, self._library.forward_delete, self.handle)

    @property
    def partial_size(self) -> int:
        """S, numbers of a row's partial result."""
        return int(self._library.forward_partial_size(self.handle))

    def partials(self, rows: int, own: Sources) -> F32:
        """Compute the partial results of some sources, f32[rows, S]; they add up over sources (DES's M_j).

        Raises:
            ValueError: sources of another number of rows.
            MemoryError: no memory.
        """
        if not own.rows() <= {rows}:
            raise ValueError(f"sources of {own.rows()} rows, not {rows}")
        table, out = own.table(), np.empty((rows, self.partial_size), np.float32)
        if not self._library.forward_partials(self.handle, address(table), len(table), rows, address(out)):
            raise MemoryError("no memory for the partial results of a network")
        return out

    def __call__(self, rows: int, own: Sources, shared: Sources, kept: Kept | None = None) -> F32:
        """Compute logits f32[rows]; LIVECTR_THREADS share the rows.

        Args:
            rows: number of rows.
            own: sources that have a row for each.
            shared: sources of a single row, which all rows share.
            kept: partial results of the rows' other sources; None: there are no other sources.

        Raises:
            ValueError: sources or partial results of another number of rows.
            MemoryError: no memory.
        """
        if kept is not None and len(kept.addresses) != rows:
            raise ValueError(f"{len(kept.addresses)} partial results for {rows} rows")
        if not own.rows() <= {rows} or not shared.rows() <= {1}:
            raise ValueError(f"sources of {own.rows()} and {shared.rows()} rows, not {rows} and 1")
        each, common = own.table(), shared.table()
        out = np.empty(rows, np.float32)
        if not self._library.forward_run(
            *(self.handle, address(each), len(each), address(common), len(common)),
            *(None if kept is None else address(kept.addresses), rows, address(out)),
        ):
            raise MemoryError("no memory for the activations of a network")
        return out


def _parameters(shape: Shape) -> int:
    """Number of parameters."""
    count, inputs = 1, sum(shape.depths)
    if shape.wide:
        count += shape.fields + sum(shape.others)
    before = inputs
    for number, size in enumerate(shape.layers):
        last = number == len(shape.layers) - 1
        count += (before + 1) * size + (size if shape.prelu and not last else 0)
        before = size
    return count


@functools.cache
def _library() -> ctypes.CDLL:
    # Fused multiply-adds: peers of these sums are BLAS's, which fuses, too.
    library = kernel_library()
    pointer, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
    library.forward_new.restype = pointer
    library.forward_new.argtypes = [
        *(pointer, number, pointer, number, number, number, number),
        *(flag, flag, flag, pointer),
    ]
    library.forward_delete.restype, library.forward_delete.argtypes = None, [pointer]
    library.forward_partial_size.restype, library.forward_partial_size.argtypes = number, [pointer]
    library.forward_partials.restype = flag
    library.forward_partials.argtypes = [pointer, pointer, number, number, pointer]
    library.forward_run.restype = flag
    library.forward_run.argtypes = [pointer, pointer, number, pointer, number, pointer, number, pointer]
    return library
