"""Position bias of a run: the curves of the models of clicks, and the lessons that they change (PAL).

    batch ─► logits of being seen, before it is learned ─► lessons of its clicks ─► step
                 │                                    └─► curves learn
                 └─► evaluation: what is measured is the product, p(seen) · p(click | seen)

Curves are replicated: every rank has all examples' places, labels and logits, and learns the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from livectr.ingest.plan.position import PLACES
from livectr.models.esmm import after_click as seen_and_clicked
from livectr.models.losses import Lesson
from livectr.models.position_bias import Curve
from livectr.store.targets import after_click as product
from livectr.trainer.des.result import StepResult
from livectr.trainer.part import Arrays, Part
from livectr.trainer.setup import Setup

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class PositionBias(Part):
    """Curves of a run; every rank has them.

    Args:
        roles: models of labels that need to be seen: of the click, and of targets that come by themselves.
    """

    kind = "position"

    def __init__(self, roles: Iterable[str]) -> None:
        self._curves = {role: Curve(PLACES) for role in roles}

    @staticmethod
    def of(setup: Setup, roles: Iterable[str]) -> PositionBias | None:
        """Curves of a run; None where its pipeline names no position."""
        after = {t.role for t in setup.pipeline.targets if t.after is not None}
        after |= {role for target in setup.pipeline.targets for role in target.value_roles}
        return None if setup.pipeline.shown is None else PositionBias(r for r in roles if r not in after)

    @property
    def roles(self) -> tuple[str, ...]:
        """Models that have a curve."""
        return tuple(self._curves)

    def of_batch(self, places: I64) -> Shown:
        """Batch or block of impressions at places int64[B], rank-major."""
        return Shown(self, places, {role: np.full(len(places), np.inf) for role in self._curves})

    def begin(self, places: I64) -> dict[str, F64]:
        """Logits f64[n] of being seen at the places int64[n] of a batch that is learned next, by role."""
        for curve in self._curves.values():
            curve.meet(torch.from_numpy(places))
        return self.logits(places)

    def logits(self, places: I64) -> dict[str, F64]:
        """Logits f64[n] of being seen at places int64[n], by role."""
        return {role: curve.of(torch.from_numpy(places)).numpy() for role, curve in self._curves.items()}

    def learn(self, role: str, places: I64, logit: Tensor, lesson: Lesson) -> None:
        """Learn a batch.

        Args:
            role: of the curve.
            places: int64[n].
            logit: f32[n], of the model, as it was scored.
            lesson: of the product.
        """
        label, weight, z = (x.double() for x in (lesson.target, lesson.factor, logit))
        self._curves[role].learn(torch.from_numpy(places), z, label, weight)

    def state(self) -> Arrays:
        """State for a checkpoint: equal for equal states."""
        found: dict[str, npt.NDArray[Any]] = {}
        for role, curve in self._curves.items():
            found[f"{role}.logit"] = curve.logit.numpy().copy()
            found[f"{role}.information"] = curve.information.numpy().copy()
            found[f"{role}.first"] = np.array([curve.first])
        return found

    def load(self, state: Arrays) -> None:
        """Resume from a `state`; a model that it lacks begins anew."""
        for role, curve in self._curves.items():
            if f"{role}.first" in state:
                curve.logit = torch.from_numpy(state[f"{role}.logit"].copy())
                curve.information = torch.from_numpy(state[f"{role}.information"].copy())
                curve.first = int(state[f"{role}.first"][0])

    def report(self) -> Mapping[str, Any]:
        """Curve of each model: place → p(seen)."""
        curves = {
            role: {str(place): round(seen, 6) for place, seen in curve.seen.items()}
            for role, curve in self._curves.items()
        }
        return {"position_bias": curves}


@dataclass(frozen=True)
class Shown:
    """Impressions of a batch or block, at their places.

    Attributes:
        bias: of the run.
        places: int64[B], rank-major.
        seen: role → logits f64[B] of being seen, from before their batch was learned.
    """

    bias: PositionBias
    places: I64
    seen: dict[str, F64] = field(default_factory=dict)

    def begin(self, rows: slice) -> None:
        """Note the logits of the rows of a batch that is learned next."""
        for role, logits in self.bias.begin(self.places[rows]).items():
            self.seen[role][rows] = logits

    def lesson(self, role: str, logit: Tensor, lesson: Lesson, rows: slice) -> Lesson:
        """Lesson of a label that needs to be seen; the curve learns.

        Args:
            role: model of the label.
            logit: f32[n], its logits.
            lesson: of the label; its weights are 0 or 1.
            rows: of the batch.
        """
        if role not in self.seen:
            return lesson
        self.bias.learn(role, self.places[rows], logit, lesson)
        of = seen_and_clicked(torch.from_numpy(self.seen[role][rows]), logit, lesson.target)
        return lesson._replace(weight=lesson.weight * of.weight)

    def product(self, role: str, logit: Tensor, rows: slice) -> Tensor:
        """Logits f32[n] of the label, seen or not."""
        return torch.from_numpy(self._product(role, logit.numpy(), rows))

    def scored(self, result: StepResult) -> StepResult:
        """Result with the logits of products."""
        every = slice(None)
        return replace(
            result, logits={role: self._product(role, z, every) for role, z in result.logits.items()}
        )

    def _product(self, role: str, logit: F32, rows: slice) -> F32:
        if role not in self.seen:
            return logit
        return product(self.seen[role][rows], logit).astype(np.float32)
