"""Result of a training step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.kernels.network.small_batch import curvature
from livectr.models.losses import Lesson

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

    @staticmethod
    def empty(roles: Iterable[str], rows: tuple[int, ...]) -> StepResult:
        """Result of a batch without examples."""
        none = np.empty(0, np.float32)
        return StepResult(dict.fromkeys(roles, none), none, 0.0, rows)

    def of(self, rows: NDArray[np.bool_]) -> StepResult:
        """Result of some rows, bool[B], rank-major."""
        if rows.all():
            return self
        bounds = np.cumsum([0, *self.rows])
        counts = tuple(int(np.count_nonzero(rows[a:b])) for a, b in itertools.pairwise(bounds))
        return replace(
            self,
            logits={role: z[rows] for role, z in self.logits.items()},
            label=self.label[rows],
            rows=counts,
        )

    def own(self, rank: int) -> slice:
        """Slice of a rank's own examples."""
        start = sum(self.rows[:rank])
        return slice(start, start + self.rows[rank])


def curvatures(
    logits: Mapping[str, F32], shift: Mapping[str, float], lessons: Mapping[str, Lesson] | None
) -> dict[str, float]:
    """Role → `curvature` of its logits f32[B], moved by its `shift`."""
    if lessons is None:
        return {role: curvature(z, shift[role]) for role, z in logits.items()}
    found = {}
    for role, z in logits.items():
        lesson = lessons[role]
        found[role] = curvature(in_loss(z, lesson), shift[role], lesson.factor.numpy())
    return found


def in_loss_by(lesson: Lesson, shift: float) -> F32:
    """Move f32[B] of the logits in the loss: the shift of the bias after them, and the lesson's offset."""
    moved = np.full(len(lesson.target), shift, np.float32)
    return moved if lesson.offset is None else moved + lesson.offset.numpy()


def in_loss(logits: F32, lesson: Lesson) -> F32:
    """Logits f32[B] with the lesson's offset."""
    moved: F32 = lesson.moved(torch.from_numpy(logits)).numpy()
    return moved


def loss_of(scores: Mapping[str, F32], label: F32, shift: Mapping[str, float]) -> float:
    """Mean cross entropy of logits f32[B] moved by their role's `shift`, summed over roles."""
    moved = (z.astype(np.float64) + shift[role] for role, z in scores.items())
    return float(sum((np.logaddexp(0, z) - label * z).mean() for z in moved))


def own_lessons(
    lessons: Mapping[str, Lesson], rows: Sequence[int], rank: int, count: int, device: torch.device
) -> dict[str, Lesson]:
    """Lessons of the examples that a rank finishes.

    Args:
        lessons: role → lesson of all B examples, rank-major.
        rows: examples of each rank.
        rank: this rank.
        count: examples that the rank finishes: B, or its own b.
        device: where the lessons are needed.
    """
    start = sum(rows[:rank]) if count < sum(rows) else 0
    part = slice(start, start + count)
    return {
        role: Lesson(
            lesson.target[part].to(device),
            lesson.weight[part].to(device),
            *(None if of is None else of[part].to(device) for of in (lesson.importance, lesson.offset)),
        )
        for role, lesson in lessons.items()
    }
