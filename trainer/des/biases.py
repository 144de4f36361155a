"""Biases of a new model: the log's own CTR from the first batch on.

Where clicks are rare, a bias would need hundreds of steps from the prior CTR to the log's, and every row
would meanwhile learn the bias' error. So the first batch, once scored, moves the biases to its CTR before it
is learned. All ranks see all labels, and a sum of labels is exact: all ranks compute the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.models.base import CTRModel, prior_log_odds

BIASES_TRAINED_KEY = "des.trained"
"""Checkpoint key: biases were warm-started and no step has run yet (trainer.checkpoint.warm_start)."""


def first_shift(models: Mapping[str, CTRModel], label: NDArray[np.float32]) -> float:
    """Move every bias to the CTR of the first batch's labels f32[B]; returns the shift in log odds."""
    clicks = float(label.sum(dtype=np.float64))
    shift = prior_log_odds(clicks, len(label) - clicks) - prior_log_odds()
    move_biases(models, shift)
    return shift


@torch.no_grad()
def move_biases(models: Mapping[str, CTRModel], shift: float) -> None:
    """Add a shift to the bias of every model."""
    for model in models.values():
        model.bias.add_(shift)
