"""Contest of champion and challengers in a run. Rank 0 holds it.

Examples with final labels go into the policy, changes into the log and the metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.language.promotion import Promotion
from livectr.ingest.pipeline import Pipeline
from livectr.trainer.part import F32, Arrays, Part, Scored
from livectr.trainer.quality import telemetry
from livectr.trainer.quality.champion import CONTEST, ChampionPolicy, Change
from livectr.trainer.quality.metrics import Labels, example_losses
from livectr.trainer.setup import Setup

LOG = logging.getLogger(__name__)
F64 = npt.NDArray[np.float64]


class Contest(Part):
    """Champion and challengers of a pipeline.

    Attributes:
        policy: decides (trainer.quality.champion).
        since: step after which the champion is the champion; 0: from the start.
    """

    kind = CONTEST
    by_step = True

    def __init__(self, pipeline: Pipeline) -> None:
        self.policy = ChampionPolicy(list(pipeline.contenders), pipeline.promotion)
        self.since = 0
        self._rule = pipeline.promotion
        self._show()

    @staticmethod
    def of(setup: Setup) -> Contest | None:
        """Contest of a run on rank 0; None without challengers, and on other ranks."""
        if setup.rank != 0:
            return None
        if not setup.pipeline.challengers:
            telemetry.CHAMPION.labels("rank").set(1)
            return None
        return Contest(setup.pipeline)

    @property
    def champion(self) -> str:
        """Role of the model that is published."""
        return self.policy.champion

    def measure(self, scored: Scored) -> None:
        """Add examples to the policy, which may change the champion."""
        weight = None if scored.scaled is None else scored.scaled.by_example
        self.add(scored.logits, scored.records["label"], scored.step, weight)

    def add(self, logits: Mapping[str, F32], label: Labels, step: int, weight: F64 | None = None) -> None:
        """Add examples with final labels.

        Args:
            logits: role → f32[n], of every contender.
            label: [n] in {0, 1}.
            step: number of the step that brought them.
            weight: f64[n], of their losses, 1 in the mean; None: 1.
        """
        losses = np.stack([example_losses(logits[role], label) for role in self.policy.contenders])
        losses = losses if weight is None else losses * weight
        for change in self.policy.add(losses):
            self.since = step
            telemetry.CHAMPION_CHANGES.inc()
            LOG.info("%s", sentence(change, self._rule, step))
        self._show()

    def report(self) -> dict[str, Any]:
        """Champion, the step since which it is the champion, and the number of changes."""
        changes = self.policy.changes
        return {"contest": {"champion": self.champion, "since_step": self.since, "changes": changes}}

    def state(self) -> Arrays:
        """State of the policy, and the step since which the champion is the champion."""
        return self.policy.state() | {"since": np.array([self.since])}

    def load(self, state: Arrays) -> None:
        """Resume from a `state`, and show the champion in the metrics."""
        self.policy.load(state)
        self.since = int(state["since"][0])
        self._show()

    def _show(self) -> None:
        size, losses = self.policy.window
        telemetry.CONTEST_EXAMPLES.set(size)
        for role, loss in losses.items():
            telemetry.CHAMPION.labels(role).set(int(role == self.champion))
            telemetry.CONTEST_LOGLOSS.labels(role).set(loss)


def sentence(change: Change, rule: Promotion, step: int) -> str:
    """Sentence on a change, with the figures that decided."""
    new, old = change.losses[change.champion], change.losses[change.before]
    return (
        f"champion: {change.champion} takes the place of {change.before} after step {step}: log loss "
        f"{new:.5f} against {old:.5f} over the last {rule.window:,} examples, {1 - new / old:.2%} less "
        f"(margin {rule.margin:.2%}); the next version holds all of its rows"
    )
