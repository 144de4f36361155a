"""Batches in a row, up to the newest, that were scored and not learned: their gradients were not finite."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SKIPPED_IN_A_ROW = 100
"""Batches after which the model is looked through, and a run whose model is broken ends.

The scale of mixed precision (`torch.amp.GradScaler`, 65,536 at first) takes 16 batches in a row to fall to 1,
after which a batch that is not finite is an error elsewhere (DeepSpeed, fairseq). Here are some more: a user
whose events have an extreme number may be in many small batches.
"""


@dataclass(frozen=True)
class Skipped:
    """Skipped batches in a row; the same on every rank.

    Args:
        batches: number; 0: the newest was learned.
        examples: of these batches.
        unscored: examples with a logit that is not finite.
    """

    batches: int = 0
    examples: int = 0
    unscored: int = 0

    def __bool__(self) -> bool:
        """True if there are some."""
        return self.batches > 0

    def and_one(self, logits: Iterable[NDArray[np.float32]]) -> Skipped:
        """These and one more.

        Args:
            logits: f32[B] of each model.
        """
        finite = np.logical_and.reduce([np.isfinite(each) for each in logits])
        lost = int((~finite).sum())
        return Skipped(self.batches + 1, self.examples + len(finite), self.unscored + lost)

    @property
    def long(self) -> bool:
        """True if no batch was learned for long."""
        return self.batches >= SKIPPED_IN_A_ROW

    @property
    def blind(self) -> bool:
        """True if the model may not be fit to score.

        Most of the examples have no finite logit, or no batch was learned for long. Its weights may be
        finite, and so large that their products are not. One example proves nothing: its own numbers may be
        extreme.
        """
        lost = self.examples > 1 and 2 * self.unscored > self.examples
        return lost or self.long
