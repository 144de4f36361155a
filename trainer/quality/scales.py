"""Scales of examples' weights, for parts whose rules count examples or clicks.

A weight has any unit: money, seconds, rows of the whole log. A rule such as "2,000 clicks of a segment" or
"the losses of the newest 10,000 examples" needs weights that are 1 in the mean. So a weight is divided by the
mean weight so far, its own example included:

    by_example   of all examples            losses that are compared
    by_click     of examples with a click   counts of clicks, whose chance error is that of clicks; before the
                 first click, of all examples

They are functions of the examples' sequence alone, so no bit depends on batches or ranks.
"""

from __future__ import annotations

import numpy as np

from livectr.trainer.part import F64, Arrays, Part, Scaled
from livectr.trainer.quality.predictions import Records, weights_of
from livectr.trainer.setup import Setup


class Scales(Part):
    """Mean weights so far. Rank 0 holds it."""

    kind = "weights"

    def __init__(self) -> None:
        self._sums = np.zeros((2, 2))  # of all examples, and of those with a click: number and weight

    @staticmethod
    def of(setup: Setup) -> Scales | None:
        """Scales of a run on rank 0; None where each example counts once, and on other ranks."""
        weighted = setup.pipeline.example_weights is not None
        return Scales() if setup.rank == 0 and weighted else None

    def scaled(self, scored: Records) -> Scaled:
        """Count examples, in training order, and scale their weights."""
        weights = weights_of(scored)
        assert weights is not None
        weight = weights.astype(np.float64)
        found: list[F64] = []
        clicked: F64 = (scored["label"] > 0).astype(np.float64)
        for sums, of in zip(self._sums, (np.ones(len(scored)), clicked), strict=True):
            # Added one after another, so that no bit depends on the batches.
            number, mass = (
                np.cumsum(np.r_[at, x])[1:] for at, x in zip(sums, (of, of * weight), strict=True)
            )
            before = found[-1].copy() if found else np.zeros(len(scored))
            found.append(np.divide(weight * number, mass, out=before, where=mass > 0))
            if len(scored):
                sums[:] = number[-1], mass[-1]
        return Scaled(*found)

    def state(self) -> Arrays:
        """State for a checkpoint: equal for equal states."""
        return {"sums": self._sums.copy()}

    def load(self, state: Arrays) -> None:
        """Resume from a `state`."""
        self._sums = state["sums"].copy()
