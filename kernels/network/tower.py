"""Tower of a two-tower model, packed for compiled calls: Python interface of `network/tower.hpp`."""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]


class Tower:
    """MLP whose result x is scaled to γ x / √(‖x‖² + soft²), a vector of the soft norm γ; immutable.

    Args:
        layers: weights f32[in, out] and biases f32[out] of each layer; ReLU is between two layers.
        gamma: γ.
        soft: soft minimum of the norm.

    Attributes:
        inputs: number of its inputs.
        outputs: numbers of a vector.
        handle: address for compiled calls.

    Raises:
        ValueError: layers that do not fit each other.
        MemoryError: no memory.
    """

    def __init__(self, layers: Sequence[tuple[F32, F32]], gamma: float, soft: float) -> None:
        sizes = [len(layers[0][0]), *(len(bias) for _, bias in layers)]
        shapes = [weight.shape for weight, _ in layers]
        if shapes != list(itertools.pairwise(sizes)):
            raise ValueError(f"layers of {shapes} do not fit each other")
        self.inputs, self.outputs = sizes[0], sizes[-1]
        numbers = np.concatenate([np.ravel(part) for layer in layers for part in layer])
        numbers = numbers.astype(np.float32, copy=False)
        words = np.array(sizes, np.int64)
        handle = _library().tower_new(address(words), len(layers), gamma, soft, address(numbers))
        if not handle:
            raise MemoryError("no memory for a tower")
        self.handle: int = handle
        weakref.finalize(self, _library().tower_delete, handle)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer, real = ctypes.c_void_p, ctypes.c_float
    library.tower_new.restype = pointer
    library.tower_new.argtypes = [pointer, ctypes.c_int64, real, real, pointer]
    library.tower_delete.restype, library.tower_delete.argtypes = None, [pointer]
    return library
