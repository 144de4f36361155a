"""Probability of a target (models.esmm)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def after_click(click: npt.NDArray[np.floating], given: npt.NDArray[np.floating]) -> F64:
    """Logits f64[n] of p(click) · p(target | click), of the logits [n] of both."""
    z, q = click.astype(np.float64), given.astype(np.float64)
    yes = -np.logaddexp(0, -z) - np.logaddexp(0, -q)
    # 1 − p q = (1 − p) + p (1 − q)
    no = np.logaddexp(-np.logaddexp(0, z), -np.logaddexp(0, -z) - np.logaddexp(0, q))
    logits: F64 = yes - no
    return logits


def probability(own: F32, click: F32, lines: tuple[F32, F32] | None, *, after: bool) -> F64:
    """Probabilities f64[n] of a target.

    Args:
        own: logits f32[n] of its head.
        click: logits f32[n] of the click.
        lines: scale and shift f32[n] of their calibration; None: they are not calibrated.
        after: it comes after a click.
    """
    logits: F64 = own.astype(np.float64)
    if after:
        z = click.astype(np.float64)
        logits = after_click(z if lines is None else lines[0] * z + lines[1], own)
    found: F64 = 1 / (1 + np.exp(-np.clip(logits, -700, 700)))
    return found
