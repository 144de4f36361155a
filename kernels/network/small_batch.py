"""Network of a small batch, learned in compiled calls (`network/small_batch.cpp`)."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import quick_library

F32 = npt.NDArray[np.float32]

LONG = 1 << 21
"""Products of a batch from which its calls leave the interpreter's lock to others: some 50 µs a call."""


@dataclass(frozen=True)
class Learned:
    """Parameter and its moments, arrays f32 of one shape, C-contiguous; learned in place.

    Attributes:
        centre: means of dense features whose first order it is; None: it is another parameter.
    """

    value: F32
    mean: F32
    square: F32
    centre: F32 | None = None


@dataclass(frozen=True)
class Parameters:
    """Parameters of a network on the rank of F fields and D dense features.

    Args:
        bias: f32[].
        scale: of the first order, f32[F]; None: no first order.
        of_dense: first order of the dense features, f32[D]; None: it has none.
        fields: first layer's weight of the fields, f32[F, K, H]; None: no first layer.
        dense: first layer's weight of the dense features, f32[D, H]; None: it has none.
        first_bias: f32[H]; None: no first layer.
        layers: weight f32[I, O] and bias f32[O] of each layer after the first.
    """

    bias: Learned
    scale: Learned | None = None
    of_dense: Learned | None = None
    fields: Learned | None = None
    dense: Learned | None = None
    first_bias: Learned | None = None
    layers: Sequence[tuple[Learned, Learned]] = ()

    def __iter__(self) -> Iterator[Learned | None]:
        yield from (self.bias, self.scale, self.of_dense, self.fields, self.dense, self.first_bias)
        for weight, bias in self.layers:
            yield from (weight, bias)


@dataclass(frozen=True)
class Rates:
    """Learning rates of an update.

    Args:
        adam: lr √(1 − β₂ᵗ) / (1 − β₁ᵗ).
        epsilon: ε √(1 − β₂ᵗ).
        samples: examples that the gradients are sums over.
        bias: of the bias' AdaGrad; 0: it is learned already.
        curvature: least divisor of the bias' gradient.
        scale: of the scales' AdaGrad; 0: they are learned already.
        number: of the normalised AdaGrad of the first order's dense features.
        settles: lessons teach the batch (`trainer.des.dense`).
    """

    adam: float
    epsilon: float
    samples: int
    bias: float
    curvature: float
    scale: float
    number: float
    settles: bool = False


@dataclass(frozen=True)
class DeepLayers:
    """First layer of vectors and dense features, and the layers after it.

    Args:
        of_fields: first layer's weight of the fields, f32[F, K, H].
        of_dense: first layer's weight of the dense features, f32[D, H]; None: it has none.
        first_bias: f32[H].
        layers: weight f32[I, O] and bias f32[O] of each layer after the first.
    """

    of_fields: Learned
    of_dense: Learned | None
    first_bias: Learned
    layers: Sequence[tuple[Learned, Learned]]

    def __iter__(self) -> Iterator[Learned | None]:
        yield from (self.of_fields, self.of_dense, self.first_bias)
        for weight, bias in self.layers:
            yield from (weight, bias)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Outputs of each layer."""
        each = [self.first_bias, *(bias for _, bias in self.layers)]
        return np.array([len(bias.value) for bias in each], np.int64)

    def shape(self, most: int) -> list[int]:
        """F, K, D, layers after the first, and `most`."""
        fields, dim, _ = self.of_fields.value.shape
        dense = 0 if self.of_dense is None else len(self.of_dense.value)
        return [fields, dim, dense, len(self.layers), most]


@dataclass(frozen=True)
class Cross:
    """Cross layers' parameters of fields or of dense features.

    Args:
        weight: f32[n, K, L + 1].
        bias: f32[n, K, L].
    """

    weight: Learned
    bias: Learned


class SmallBatchNetwork:
    """Network of small batches on one rank; made by `layered`, `crossed` or `products`.

    Calls follow each other: `partial`, `finish`, `backward`, `update`, all of one batch.

    Args:
        handle: address of the compiled network, which this object owns from here on.
        partial_size: see Attributes.
        parameters: are learned in place, and kept alive.

    Attributes:
        handle: see Args.
        partial_size: S, partial sums of an example.
        weights: numbers that an update learns.

    Raises:
        MemoryError: no memory.
    """

    def __init__(self, handle: int | None, partial_size: int, parameters: Sequence[Learned | None]) -> None:
        if not handle:
            raise MemoryError("no memory for the network of small batches")
        self.handle, self.partial_size, self._parameters = handle, partial_size, parameters
        self.weights = sum(each.value.size for each in parameters if each is not None)
        self._rows = 0
        weakref.finalize(self, _library().small_batch_delete, handle)

    @staticmethod
    def layered(
        *, fields: int, dim: int, dense: int, pairs: bool, parameters: Parameters, most: int
    ) -> SmallBatchNetwork:
        """LR, FM, DNN, Wide & Deep or DeepFM: a first order, FM's second, a first layer and an MLP.

        Args:
            fields: F.
            dim: K, values of a vector; 0: the network reads none.
            dense: D.
            pairs: FM's second order is added.
            parameters: are learned in place.
            most: examples of the largest batch.

        Raises:
            MemoryError: no memory.
        """
        first = parameters.scale is not None
        hidden = 0 if parameters.first_bias is None else len(parameters.first_bias.value)
        shape = np.array([fields, dim, dense, first, pairs, len(parameters.layers), most], np.int64)
        outputs = np.array([hidden, *(len(bias.value) for _, bias in parameters.layers)], np.int64)
        given = _addresses(each := tuple(parameters))
        handle = _library().small_batch_new(address(shape), address(outputs), address(given))
        return SmallBatchNetwork(handle, hidden + int(first) + (dim if pairs else 0), each)

    @staticmethod
    def crossed(
        *, bias: Learned, deep: DeepLayers, fields: Cross, dense: Cross | None, most: int
    ) -> SmallBatchNetwork:
        """Deep & Cross network (`models.dcn`).

        Args:
            bias: of the logit, f32[].
            deep: the MLP.
            fields: cross layers of the fields, at least one layer.
            dense: cross layers of the dense features; None: it has none.
            most: examples of the largest batch.

        Raises:
            MemoryError: no memory.
        """
        crosses, outputs = fields.bias.value.shape[2], deep.sizes
        shape = np.array([*deep.shape(most), crosses], np.int64)
        of_dense = (None, None) if dense is None else (dense.weight, dense.bias)
        given = _addresses(each := (bias, *deep, fields.weight, fields.bias, *of_dense))
        handle = _library().small_batch_crossed(address(shape), address(outputs), address(given))
        return SmallBatchNetwork(handle, int(outputs[0]) + 2 * crosses + 1, each)

    @staticmethod
    def products(
        *, bias: Learned, deep: DeepLayers, weight: Learned, outer: bool, most: int
    ) -> SmallBatchNetwork:
        """Product-based network (`models.pnn`).

        Args:
            bias: of the logit, f32[].
            deep: the layers; the products join the first one's result.
            weight: θ f32[F, H] of the inner product, or W f32[K, K · H] of the outer.
            outer: it is the outer product.
            most: examples of the largest batch.

        Raises:
            MemoryError: no memory.
        """
        outputs, dim = deep.sizes, deep.of_fields.value.shape[1]
        shape = np.array([*deep.shape(most), outer], np.int64)
        given = _addresses(each := (bias, *deep, weight))
        handle = _library().small_batch_products(address(shape), address(outputs), address(given))
        hidden = int(outputs[0])
        return SmallBatchNetwork(handle, hidden + (dim if outer else hidden * dim), each)

    @property
    def _calls(self) -> ctypes.CDLL:
        """Library whose calls for this batch keep the interpreter's lock, or leave it to other threads."""
        return _library(released=self._rows * self.weights > LONG)

    def partial(self, values: F32, start: int, dense: F32 | None, out: F32, at: int) -> None:
        """Writes the partial sums of this rank's fields.

        Args:
            values: f32[B, F, D_model], of which the network reads its own from `start` on.
            start: see `values`.
            dense: f32[B, D].
            out: f32[B, ·], whose columns from `at` on are written.
            at: see `out`.
        """
        rows, _, stride = values.shape
        self._rows = rows
        from_, x = address(values) + 4 * start, 0 if dense is None else address(dense)
        self._calls.small_batch_partial(
            self.handle, rows, from_, stride, x, address(out) + 4 * at, out.shape[1]
        )

    def finish(self, sums: F32, at: int) -> F32:
        """Logits f32[B] of sums f32[B, ·] over all ranks, columns as in `partial`."""
        logits = np.empty(len(sums), np.float32)
        self._calls.small_batch_finish(self.handle, address(sums) + 4 * at, sums.shape[1], address(logits))
        return logits

    def backward(
        self,
        logits: F32,
        shift: float,
        label: F32,
        weight: F32 | None,
        of_values: F32,
        start: int,
        *,
        first_learned: bool,
        pairs_learned: bool,
    ) -> float:
        """Gradients of the sum of the cross entropies.

        Args:
            logits: f32[B].
            shift: is added to the logits.
            label: f32[B], targets in [0, 1]; above 1 is 1.
            weight: f32[B] of the examples' losses; None: 1.
            of_values: gradient of `values`, of whose columns this network's are written.
            start: as in `partial`.
            first_learned: the first order has been learned: its gradient by the rows is zero.
            pairs_learned: FM's second order has been learned: its gradient by the rows is left out.

        Returns:
            Bound of the sum of all gradients' absolute values; not finite where a gradient is not.
        """
        bound: float = self._calls.small_batch_backward(
            self.handle,
            address(logits),
            shift,
            address(label),
            0 if weight is None else address(weight),
            first_learned,
            pairs_learned,
            address(of_values) + 4 * start,
            of_values.shape[2],
        )
        return bound

    def update(self, rates: Rates) -> float:
        """Learns the parameters.

        Returns:
            Change of the mean of all logits by the first order of dense features, which the bias has to take
            back; 0 on a rank that does not have it.
        """
        r = rates
        moved: float = self._calls.small_batch_update(
            self.handle, r.adam, r.epsilon, 1.0 / r.samples, r.bias, r.curvature, r.scale, r.number, r.settles
        )
        return moved


def _addresses(parameters: Sequence[Learned | None]) -> npt.NDArray[np.uintp]:
    return np.array(
        [
            (0,) * 4
            if each is None
            else [0 if a is None else address(a) for a in (each.value, each.mean, each.square, each.centre)]
            for each in parameters
        ],
        np.uintp,
    )


def curvature(logits: F32, shift: float = 0.0, weight: F32 | None = None) -> float:
    """Σ w p (1 − p): second derivative of weighted cross entropies by a bias.

    Args:
        logits: f32[B].
        shift: is added to the logits.
        weight: f32[B] of the examples' losses; None: 1.
    """
    n = len(logits := contiguous(logits, np.float32, (None,)))
    weight = None if weight is None else contiguous(weight, np.float32, (n,))
    at = 0 if weight is None else address(weight)
    found: float = _library().small_batch_curvature(n, address(logits), shift, at)
    return found


@functools.cache
def _library(*, released: bool = False) -> ctypes.CDLL:
    quick = quick_library()
    library = ctypes.CDLL(quick._name) if released else quick
    array, size, number, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_bool
    library.small_batch_new.restype, library.small_batch_new.argtypes = array, [array] * 3
    library.small_batch_crossed.restype = library.small_batch_products.restype = array
    library.small_batch_crossed.argtypes = library.small_batch_products.argtypes = [array] * 3
    library.small_batch_delete.restype, library.small_batch_delete.argtypes = None, [array]
    library.small_batch_partial.restype = library.small_batch_finish.restype = None
    library.small_batch_partial.argtypes = [array, size, array, size, array, array, size]
    library.small_batch_finish.argtypes = [array, array, size, array]
    library.small_batch_backward.restype = ctypes.c_double
    library.small_batch_backward.argtypes = [array, array, number, array, array, flag, flag, array, size]
    library.small_batch_curvature.restype = ctypes.c_double
    library.small_batch_curvature.argtypes = [size, array, number, array]
    library.small_batch_update.restype = number
    library.small_batch_update.argtypes = [array, *[number] * 7, ctypes.c_bool]
    return library
