"""Biases of a new model: the log's own CTR from the first labels on.

Where clicks are rare, a bias would need hundreds of steps from the prior CTR to the log's, and every row
would meanwhile learn the bias' error. A small batch moves it with every example (`trainer.des.online`). Other
batches move it to what labels say before rows learn from them:

    first batch    to its CTR
    sure labels    the first `ENOUGH` labels that are final (weight 1 of a `models.losses.Lesson`) move it to
                   the mean of all of them so far, and its optimiser leaves it alone meanwhile. Labels of the
                   first batch may be provisional: their CTR lacks late clicks.

All ranks see all logits and labels in the same order, so they compute the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.models.base import CTRModel, prior_log_odds
from livectr.models.losses import Lesson

BIASES_TRAINED_KEY = "des.trained"
"""Checkpoint key: biases were warm-started and no step has run yet (trainer.checkpoint.warm_start)."""
SURE_KEY = "des.sure."
"""Begin of a checkpoint key: sure labels that a role's bias has been fitted to."""
ENOUGH, HELD = 4096, 20
"""Sure labels after which the bias is left to its optimiser, and those that its first value counts for."""

MEMORY = 4096.0
"""Largest inertia of a bias: the curvature of about so many clicks, where they are rare."""

F32 = NDArray[np.float32]


def first_shift(label: F32, counts: F32 | None = None) -> float:
    """Shift in log odds from the prior CTR to that of the first batch.

    Args:
        label: f32[B].
        counts: f32[B], examples that each stands for; None: itself.
    """
    if counts is None:
        clicks = float(label.sum(dtype=np.float64))
        return prior_log_odds(clicks, len(label) - clicks) - prior_log_odds()
    clicks, all_ = (float(of.sum(dtype=np.float64)) for of in (label * counts, counts))
    return prior_log_odds(clicks, all_ - clicks) - prior_log_odds()


def fitted_shift(bias: float, lesson: Lesson, seen: int) -> tuple[float, int]:
    """Shift of a bias to the mean of the sure labels so far.

    Args:
        bias: log odds; stands for the `seen` sure labels before, and `HELD` more.
        lesson: of a batch.
        seen: sure labels before.

    Returns:
        Shift in log odds, 0 after `ENOUGH`; number of the batch's sure labels, or the sum of their weights.
    """
    sure = lesson.weight.numpy() == 1 if lesson.sure is None else lesson.sure.numpy()
    weight = lesson.factor.numpy()[sure]
    count = int(np.count_nonzero(sure)) if lesson.sure is None else round(float(weight.sum(dtype=np.float64)))
    if not count or seen >= ENOUGH:
        return 0.0, count
    held, clicks = HELD + seen, float((lesson.target.numpy()[sure] * weight).sum(dtype=np.float64))
    clicks += held / (1 + math.exp(-bias))
    examples = float(weight.sum(dtype=np.float64))
    return math.log(clicks / (held + examples - clicks)) - bias, count


def inertia(squares: float, seen: int, sure: int) -> float:
    """Curvature that a bias has from the lessons before a batch (`trainer.des.dense`).

    It is bounded, so that the bias of a run of months still follows a rate that changes for all keys.

    Args:
        squares: sum of squares N of the bias.
        seen: sure labels before the batch.
        sure: sure labels with it.

    Returns:
        Curvature; infinite where `fitted_shift` has just moved the bias.
    """
    return math.inf if sure > seen < ENOUGH else min(squares, MEMORY)


@torch.no_grad()
def move_biases(models: Mapping[str, CTRModel], shift: Mapping[str, float]) -> None:
    """Add a role's shift to the bias of its model."""
    for role, model in models.items():
        model.bias.add_(shift[role])
