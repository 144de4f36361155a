"""Hedger: weighs the heads of a hedge by their discounted log losses on final labels (models.hedge).

Weights change when a pane of examples ends, so that a block of small batches is mixed in a few parts. Panes
are a function of the examples alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.models.configs import head_roles
from livectr.store.hedge import mixed
from livectr.trainer.part import F32, Arrays, Part, Scored
from livectr.trainer.quality import telemetry
from livectr.trainer.quality.metrics import Labels, bounded, example_losses
from livectr.trainer.setup import Setup

F64 = npt.NDArray[np.float64]

PANES, SHORTEST, LONGEST = 50, 16, 2_000
"""A pane has a fiftieth of the examples before it, within limits."""


class Hedger(Part):
    """Weights of the heads. Rank 0 holds it.

    Args:
        roles: of the heads.
        window: examples after which a loss counts for 1/e.
    """

    kind = "hedge"

    def __init__(self, roles: tuple[str, ...], window: int) -> None:
        self.roles, self._window = roles, window
        self._losses: F64 = np.zeros(len(roles))
        self._seen = self._held = 0
        self._close(0, 0)

    @staticmethod
    def of(setup: Setup) -> Hedger | None:
        """Hedger of a run on rank 0; None where the ranking model is no hedge, and on other ranks."""
        roles = head_roles(setup.pipeline.rank)
        if setup.rank != 0 or not roles:
            return None
        return Hedger(roles, setup.pipeline.rank.window)  # type: ignore[attr-defined]

    @property
    def weights(self) -> F64:
        """Weights f64[H] as of the last pane; equal before the first."""
        return weights_of(self._closed)

    def mixed(self, logits: Mapping[str, F32]) -> F32:
        """Logits f32[n] of the mixture of heads' logits, role → f32[n]."""
        return mixed(np.stack([logits[role] for role in self.roles]), self.weights)

    def measure(self, scored: Scored) -> None:
        """Add examples to the losses, one after another; weights change at the end of each pane."""
        label, start = scored.records["label"], 0
        while start < len(label):
            part = slice(start, start + self._size - self._held)
            weight = None if scored.scaled is None else scored.scaled.by_example[part]
            self._add({role: scored.logits[role][part] for role in self.roles}, label[part], weight)
            added = len(label[part])
            start, self._held = start + added, self._held + added
            if self.closes(0):
                self._close(self._seen + self._held, 0)

    def closes(self, count: int) -> bool:
        """Return true if so many more examples end a pane."""
        return self._held + count >= self._size

    @property
    def _size(self) -> int:
        return min(max(self._seen // PANES, SHORTEST), LONGEST)

    def _close(self, seen: int, held: int) -> None:
        self._seen, self._held, self._closed = seen, held, self._losses.copy()
        for role, weight in zip(self.roles, self.weights.tolist(), strict=True):
            telemetry.HEAD_WEIGHT.labels(role).set(weight)

    def _add(self, logits: Mapping[str, F32], label: Labels, weight: F64 | None) -> None:
        losses = np.stack([example_losses(bounded(logits[role]), label) for role in self.roles])
        losses = losses if weight is None else losses * weight
        kept = math.exp(-1 / self._window)
        for head, of_head in enumerate(losses.tolist()):
            held = float(self._losses[head])
            for loss in of_head:  # in turn, so that sums do not depend on batches
                held = held * kept + loss
            self._losses[head] = held

    def report(self) -> dict[str, Any]:
        """Weights of the heads."""
        pairs = zip(self.roles, self.weights.tolist(), strict=True)
        return {"hedge": {role: round(weight, 6) for role, weight in pairs}}

    def state(self) -> Arrays:
        """State for a checkpoint: equal for equal states."""
        numbers = np.array([self._seen, self._held], np.int64)
        return {"losses": self._losses.copy(), "closed": self._closed.copy(), "numbers": numbers}

    def load(self, state: Arrays) -> None:
        """Resume from a `state`; that of another number of heads is left out."""
        if state["losses"].shape == self._losses.shape:
            self._losses = state["closed"].copy()
            self._close(*map(int, state["numbers"]))
            self._losses = state["losses"].copy()


def weights_of(losses: F64) -> F64:
    """Weights f64[H] of discounted losses f64[H]."""
    weights: F64 = np.exp(losses.min() - losses)
    weights /= weights.sum()
    return weights
