"""First and second order of a logit, learned example by example (`online/examples.hpp`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Labels:
    """Labels of B examples, whose loss is cross entropy.

    Args:
        label: f32[B], targets in [0, 1]; above 1 (`models.losses.LATE`) is 1.
        weight: f32[B], of the examples' losses; None: 1.
    """

    label: F32
    weight: F32 | None = None


@dataclass(frozen=True)
class Occurrences:
    """Key occurrences of B examples, as numbers of unique rows.

    Args:
        sequence: i64[B], order of the examples, each once.
        offsets: i32[F·B + 1], field-major: example i has the occurrences slots[offsets[f·B + i] :
            offsets[f·B + i + 1]] in field f.
        slots: u32[nnz], row of each key occurrence.
    """

    sequence: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int32]
    slots: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Learned:
    """A segment of U unique rows.

    Args:
        state: f32[U, dim + S], its values and its optimiser's state.
        hyper: hyper-parameters of the optimiser, as `Optimiser.hyper` orders them.
    """

    state: F32
    hyper: Sequence[float]


@dataclass(frozen=True)
class Scale:
    """Scales s ≥ 0 of the weights of F fields: a logit has Σ_f s_f Σ_k w_k.

    Args:
        state: f32[F, 2], s and its sum of squared gradients N.
        rate: s ← max(s − rate · g / √(1 + N), 0), with the gradient g of an example.
        settles: as of `trainer.des.dense.DenseAdam.step`.
    """

    state: F32
    rate: float
    settles: bool = False


def learn_examples(
    logits: F32,
    labels: Labels,
    occurrences: Occurrences,
    scale: Scale,
    first: Learned,
    second: Learned | None = None,
    *,
    bias: F32 | None = None,
) -> F32:
    """Scores and learns examples one after the other. O(key occurrences).

    Args:
        logits: f32[B], with the weights and vectors of the rows.
        labels: of the examples.
        occurrences: of the examples' keys.
        scale: of the fields' weights, learned in place by AdaGrad.
        first: weights w f32[U, 1 + 3], learned in place by FTRL (McMahan et al. 2013, Algorithm 1). w = NaN:
            there is no row.
        second: vectors v f32[U, K + K] of FM's second order, learned in place by AdaGrad (Duchi et al. 2011);
            None: not set.
        bias: f32[2], b and its sum of squared gradients N, learned in place as `trainer.des.online` has it;
            None: it stays as it is.

    Returns:
        Logits f32[B], each with the weights and vectors that the examples before it have left.

    Raises:
        ValueError: shapes or slots do not fit.
    """
    n, unique = len(logits), len(first.state)
    second = second or Learned(np.empty((unique, 0), np.float32), ())
    dim = second.state.shape[1] // 2
    _check_state("w", first.state, unique, 4)
    _check_state("v", second.state, unique, 2 * dim)
    fields = max(0, len(occurrences.offsets) - 1) // max(n, 1)
    offsets = contiguous(occurrences.offsets, np.int32, (None,))
    slots = contiguous(occurrences.slots, np.uint32, (None,))
    if len(offsets) != fields * n + 1 or offsets[-1] != len(slots) or slots.max(initial=0) >= max(unique, 1):
        raise ValueError(f"{len(offsets)} offsets do not fit {n} examples and {len(slots)} slots of {unique}")
    _check_state("s", scale.state, fields, 2)
    sequence = contiguous(occurrences.sequence, np.int64, (n,))
    if n and (sequence.min() < 0 or sequence.max() >= n):
        raise ValueError(f"sequence must name {n} examples")
    label, logits = contiguous(labels.label, np.float32, (n,)), contiguous(logits, np.float32, (n,))
    weight = None if labels.weight is None else contiguous(labels.weight, np.float32, (n,))
    ftrl, adagrad = np.array(first.hyper, np.float32), np.array(second.hyper, np.float32)
    out = np.empty(n, np.float32)
    if bias is not None and (bias.dtype != np.float32 or bias.shape != (2,) or not bias.flags.c_contiguous):
        raise ValueError(f"bias must be C-contiguous float32[2], not {bias.dtype}{list(bias.shape)}")
    scales = address(scale.state), scale.rate, scale.settles, None if bias is None else address(bias)
    rows = unique, address(first.state), address(ftrl), dim, address(second.state), address(adagrad)
    given = address(label), None if weight is None else address(weight), address(logits)
    _library().learn_examples(
        n,
        address(sequence),
        fields,
        address(offsets),
        address(slots),
        *scales,
        *rows,
        *given,
        address(out),
    )
    return out


def _check_state(name: str, state: F32, unique: int, width: int) -> None:
    if state.dtype != np.float32 or not state.flags.c_contiguous or state.shape != (unique, width):
        found = f"{state.dtype}{list(state.shape)}"
        raise ValueError(f"state of {name} must be C-contiguous float32[{unique}, {width}], not {found}")


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    array, size = ctypes.c_void_p, ctypes.c_int64
    library.learn_examples.restype = None
    library.learn_examples.argtypes = [
        size, array, size, array, array, array, ctypes.c_float, ctypes.c_bool, array, size, array, array,
        size, array, array, array, array, array, array,
    ]  # fmt: skip
    return library
