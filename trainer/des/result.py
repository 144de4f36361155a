"""Result of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class StepResult:
    """Predictions of a step before it learned, the same on every rank. Examples are rank-major.

    Attributes:
        logits: role → f32[B], of the weights before the update
        label: f32[B]
        loss: mean cross entropy of the batch, summed over roles, without auxiliary losses; in the first step
            that of the logits after the bias was moved (`trainer.des.step`)
        rows: examples of each rank
    """

    logits: dict[str, F32]
    label: F32
    loss: float
    rows: tuple[int, ...] = field(default=())

    def own(self, rank: int) -> slice:
        """Slice of a rank's own examples."""
        start = sum(self.rows[:rank])
        return slice(start, start + self.rows[rank])


def curvature(logits: F32) -> float:
    """Σ p (1 − p) of logits f32[B]: second derivative of their cross entropies by a bias."""
    away = np.exp(-np.abs(logits.astype(np.float64)))  # of p / (1 − p) or its inverse, the one below 1
    return float((away / np.square(1 + away)).sum())


def loss_of(scores: Mapping[str, F32], label: F32, shift: float) -> float:
    """Mean cross entropy of logits f32[B] moved by `shift`, summed over roles."""
    moved = (z.astype(np.float64) + shift for z in scores.values())
    return float(sum((np.logaddexp(0, z) - label * z).mean() for z in moved))
