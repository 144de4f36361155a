"""Aggregation ⊕ of a step (DES eq. 1): field-parallel (all-reduce) or sample-parallel (reduce-scatter)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from livectr.trainer.des.batch import GlobalBatch
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.reading import Leaves
from livectr.trainer.feature_parts import GatheredInputs

F32 = NDArray[np.float32]
Scores = tuple[dict[str, F32], F32]
"""Role → logits f32[B], and labels f32[B], of all ranks' examples."""


class Strategy(Protocol):
    """Aggregation of partial results, and the collectives that follow from it. All methods are collective."""

    def aggregate(self, leaves: Leaves, batch: GlobalBatch) -> tuple[list[Tensor], GatheredInputs]:
        """Sum the partial results over the ranks.

        Returns:
            f32[n, S] of each role, and the inputs that models gather: of all examples (n = B), or of the
            own examples (n = b).
        """

    def scores(self, own: Callable[[], Mapping[str, F32]], batch: GlobalBatch) -> Callable[[], Scores]:
        """Start to give all ranks the logits f32[n] by role; the result waits for them.

        `own` waits for the own, which other ranks need at once.
        """

    def reduce_gradients(self, dense: DenseAdam) -> Callable[[], None]:
        """Start to sum the gradients of replicated parameters that differ between ranks; the result waits."""
