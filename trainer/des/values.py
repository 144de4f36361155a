"""Heads of values in a step: their losses, curvatures and first biases (models.lognormal)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.models.base import CTRModel
from livectr.models.lognormal import LOCATION, LOSSES, curvature, first_logit
from livectr.models.losses import Lesson, Loss
from livectr.trainer.des.result import in_loss_by

F32 = NDArray[np.float32]


class ValueHeads:
    """Heads of a step that are no probabilities; torch learns them.

    Args:
        heads: role → head, a name of `models.lognormal.LOSSES`.
    """

    def __init__(self, heads: Mapping[str, str]) -> None:
        self._heads = dict(heads)
        self.losses: dict[str, Loss] = {role: LOSSES[head] for role, head in heads.items()}

    def __contains__(self, role: str) -> bool:
        return role in self._heads

    def __bool__(self) -> bool:
        return bool(self._heads)

    def begin(
        self, lessons: Mapping[str, Lesson], models: Mapping[str, CTRModel], sure: Mapping[str, int]
    ) -> tuple[dict[str, Lesson], dict[str, float]]:
        """Let the first values move the biases; they teach nothing else.

        Args:
            lessons: role → lesson of all B examples.
            models: role → network.
            sure: role → values before the batch.

        Returns:
            Lessons of the batch, and shifts of the biases of the heads that begin.
        """
        found, shift = dict(lessons), dict[str, float]()
        for role, head in self._heads.items():
            lesson = lessons[role]
            if sure[role] or not bool((taught := lesson.weight > 0).any()):
                continue
            of_location = lessons[role if head == LOCATION else f"{role.rpartition('.')[0]}.{LOCATION}"]
            shift[role] = first_logit(head, of_location.target[taught]) - models[role].bias.item()
            found[role] = lesson._replace(weight=torch.zeros_like(lesson.weight))
        return found, shift

    def curvatures(
        self, logits: Mapping[str, F32], shift: Mapping[str, float], lessons: Mapping[str, Lesson]
    ) -> dict[str, float]:
        """Curvature of each head for its bias (`trainer.des.dense`)."""
        return {
            role: curvature(
                head,
                torch.from_numpy(logits[role] + in_loss_by(lessons[role], shift[role])),
                lessons[role],
            )
            for role, head in self._heads.items()
        }
