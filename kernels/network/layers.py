"""Host kernels of an MLP's layers after the first: products, biases, activations, gradients in one pass.

`models.fused.perceptron` has the formulas. Arrays are f32 and C-contiguous, but for rows of `x` and `of_x`,
which may lie further apart. B examples; layer l maps I_l inputs to O_l outputs.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.network.packed import KINDS, Factors, at, rows_at
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """Layer of an MLP.

    Attributes:
        weight: f32[I, O].
        bias: f32[O].
        factors: of its packed products; None: a narrow layer's, fp32 and not packed.
    """

    weight: F32
    bias: F32
    factors: Factors | None


def forward(
    x: F32, first_bias: F32, layers: Sequence[Layer], inputs: Sequence[F32], out: F32, *, pairs: int = -1
) -> None:
    """Writes relu(x + first_bias) and every further layer's activated input, and the last layer's result.

    Args:
        x: f32[B, I_0], or f32[B, I_0 + 1 + K] with pairs.
        first_bias: f32[I_0].
        layers: after the first, one or more.
        inputs: f32[B, I_l] of each layer, written.
        out: f32[B, O] of the last layer, written; with pairs O = 1.
        pairs: K; FM's substitution of the row's last 1 + K numbers [s | v], s + ½ ‖v‖², is added. -1: none.

    Raises:
        MemoryError: no memory.
    """
    given, each = _layers(layers), _each(inputs)
    sizes = len(layers), len(x), *rows_at(x), pairs
    if not _library().layers_forward(given.ctypes.data, *sizes, at(first_bias), each.ctypes.data, at(out)):
        raise MemoryError("no memory for the layers of a batch")


def backward(
    grad: F32,
    layers: Sequence[Layer],
    inputs: Sequence[F32],
    x: F32,
    of_x: F32,
    of_results: Sequence[F32],
    *,
    pairs: int = -1,
) -> list[F32]:
    """Writes the gradients of x and of the layers' results; wide weights' are the caller's product of these.

    Args:
        grad: f32[B, O] of the last layer's result.
        layers: as of `forward`.
        inputs: as of `forward`.
        x: as of `forward`.
        pairs: as of `forward`.
        of_x: as x, written.
        of_results: f32[B, O_l] of each layer but the last, written; before the activation.

    Returns:
        Gradients of the first bias f32[I_0], then of each layer's bias f32[O_l] and, if the layer is narrow,
        of its weight f32[I_l, O_l].

    Raises:
        MemoryError: no memory.
    """
    shapes: list[tuple[int, ...]] = [layers[0].weight.shape[:1]]
    for layer in layers:
        narrow = [layer.weight.shape[::-1]] if layer.factors is None else []
        shapes += [layer.bias.shape, *narrow]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    found = np.empty(ends[-1], np.float32)
    given, each, results = _layers(layers), _each(inputs), _each(of_results)
    sizes = len(layers), len(x), at(grad), each.ctypes.data, *rows_at(x), pairs, *rows_at(of_x)
    if not _library().layers_backward(given.ctypes.data, *sizes, results.ctypes.data, found.ctypes.data):
        raise MemoryError("no memory for the gradients of a batch")
    parts = zip(np.split(found, ends[:-1]), shapes, strict=True)
    return [np.ascontiguousarray(part.reshape(shape).T) for part, shape in parts]


def _layers(layers: Sequence[Layer]) -> npt.NDArray[np.int64]:
    """The C structs, int64[L, 5]."""
    return np.array(
        [[at(one.weight), at(one.bias), *one.weight.shape, KINDS[one.factors]] for one in layers], np.int64
    )


def _each(arrays: Sequence[F32]) -> npt.NDArray[np.int64]:
    """Addresses."""
    return np.array([at(array) for array in arrays], np.int64)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.layers_forward.restype = library.layers_backward.restype = ctypes.c_bool
    library.layers_forward.argtypes = [
        *(pointer, number, number),
        *(pointer, number, number),
        *(pointer, pointer, pointer),
    ]
    library.layers_backward.argtypes = [
        *(pointer, number, number),
        *(pointer, pointer, pointer, number, number),
        *(pointer, number, pointer, pointer),
    ]
    return library
