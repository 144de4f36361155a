"""FTRL of a logit's first order, example by example (`online/ftrl.hpp`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.compiler import compile_host

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Labels:
    """Labels of B examples, and their loss: cross entropy, if nothing else is said.

    Args:
        label: f32[B], as the loss takes them.
        fake_negative: the loss is fake-negative weighted (`models.fnw`).
        weight: f32[B], of the examples' losses; None: 1.
    """

    label: F32
    fake_negative: bool = False
    weight: F32 | None = None


def ftrl_online(
    logits: F32,
    labels: Labels,
    sequence: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int32],
    slots: npt.NDArray[np.uint32],
    state: F32,
    hyper: Sequence[float],
) -> F32:
    """Scores and learns examples one after the other (McMahan et al. 2013, Algorithm 1). O(key occurrences).

    Args:
        logits: f32[B], with the weights of `state`.
        labels: of the examples.
        sequence: i64[B], order of the examples, each once.
        offsets: i32[F·B + 1], field-major: example i has the occurrences slots[offsets[f·B + i] :
            offsets[f·B + i + 1]] in field f.
        slots: u32[nnz], row of `state` of each key occurrence.
        state: f32[U, 4], weight w, z, n and alpha of each row; learned in place. w = NaN: there is no row.
        hyper: alpha, beta, l1 and l2.

    Returns:
        Logits f32[B], each with the weights that the examples before it have left.

    Raises:
        ValueError: shapes or slots do not fit.
    """
    n, (unique, width) = len(logits), state.shape
    fields = max(0, len(offsets) - 1) // max(n, 1)
    if state.dtype != np.float32 or not state.flags.c_contiguous or width != 4:
        raise ValueError(f"state must be C-contiguous float32[U, 4], not {state.dtype}{list(state.shape)}")
    if len(offsets) != fields * n + 1 or offsets[-1] != len(slots) or slots.max(initial=0) >= max(unique, 1):
        raise ValueError(f"{len(offsets)} offsets do not fit {n} examples and {len(slots)} slots of {unique}")
    sequence = contiguous(sequence, np.int64, (n,))
    if n and (sequence.min() < 0 or sequence.max() >= n):
        raise ValueError(f"sequence must name {n} examples")
    offsets, slots = contiguous(offsets, np.int32, (None,)), contiguous(slots, np.uint32, (None,))
    label, logits = contiguous(labels.label, np.float32, (n,)), contiguous(logits, np.float32, (n,))
    weight = None if labels.weight is None else contiguous(labels.weight, np.float32, (n,))
    rates, out = np.array(hyper, np.float32), np.empty(n, np.float32)
    keys = address(offsets), address(slots)
    given = address(label), labels.fake_negative, None if weight is None else address(weight), address(logits)
    _library().ftrl_online(
        n, address(sequence), fields, *keys, unique, address(state), address(rates), *given, address(out)
    )
    return out


@functools.cache
def _library() -> ctypes.CDLL:
    library = compile_host('#include "online/ftrl.hpp"\n', name="online")
    array, size = ctypes.c_void_p, ctypes.c_int64
    library.ftrl_online.restype = None
    library.ftrl_online.argtypes = [
        size, array, size, array, array, size, array, array, array, ctypes.c_int32, array, array, array,
    ]  # fmt: skip
    return library
