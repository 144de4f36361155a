"""Mixture of a hedge's heads (models.hedge), and its weights in a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.system.errors import MismatchError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

WEIGHTS = "hedge.weights"
"""Name of the tensor f64[H] of a version."""


def mixed(logits: F32, weights: F64) -> F32:
    """Logits f32[n] of Σ_h α_h σ(z_h).

    Args:
        logits: f32[H, n], of the heads.
        weights: f64[H], their sum is 1.
    """
    z = logits.astype(np.float64)
    with np.errstate(divide="ignore"):  # of a head that has lost
        known = np.log(weights)[:, None]
    yes = np.logaddexp.reduce(known - np.logaddexp(0, -z), axis=0)
    no = np.logaddexp.reduce(known - np.logaddexp(0, z), axis=0)
    out: F32 = (yes - no).astype(np.float32)
    return out


def published_weights(arrays: Mapping[str, npt.NDArray[Any]], heads: int) -> F64:
    """Weights f64[H] of a version.

    Raises:
        MismatchError: it has none, or of other heads.
    """
    weights = arrays.get(WEIGHTS)
    if weights is None or weights.shape != (heads,) or weights.dtype != np.float64:
        raise MismatchError(f"the published version has no weights of {heads} heads of a hedge")
    return weights
