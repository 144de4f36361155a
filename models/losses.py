"""Losses of a batch, by the way in which labels that come late are learned (`ingest.language.delays`).

A label is 0, 1, or `LATE` for a late positive: an impression that was learned before as a provisional
negative, and has got its click since. Each loss is a sum over the examples of a batch.

    wait, vanilla    binary cross entropy, as `torch.nn.functional` has it
    fnw, es_dfm      models.fnw and models.es_dfm give each row a target and a weight

**Keys that stop.** The papers' losses are right where late positives and the negatives that answer them come
side by side, as for a key that is shown evenly. When its impressions stop, its late positives come alone for
a window, and push it far above its click rate. So both losses are completed here: an impression is learned
once more, with its final label, when its window has passed. Whatever a key does, running, starting, pausing,
stopping, its finals are its impressions of a window ago, each with its true label, so their mean gradient is
p − c. Finals weigh 1. What is learned before them weighs less, or has no mean of its own.

That holds for the weights of the key alone. Parameters that all keys share go on to learn from the other
keys, and no lesson of a key that has stopped answers them. So the bias and the scales of fields settle: they
learn ever more slowly from lessons (`trainer.des.dense`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

LATE = 2.0
"""Label of a late positive."""


class Lesson(NamedTuple):
    """Targets f32[n] in [0, 1] and weights f32[n] of at least 0 of rows.

    Weight 0 teaches nothing. Weight 1 is for labels that are sure: the bias is fitted to the first of them
    (`trainer.des.biases`).

    Attributes:
        importance: f32[n], factor of the weights that the pipeline gives (`models.importance`); None: 1.
        offset: f32[n], added to the logits in the loss alone; None: 0.
        sure: bool[n], rows whose labels are sure, where weights do not tell; None: those of weight 1.
    """

    target: Tensor
    weight: Tensor
    importance: Tensor | None = None
    offset: Tensor | None = None
    sure: Tensor | None = None

    @property
    def factor(self) -> Tensor:
        """Factors f32[n] of the rows' losses."""
        return self.weight if self.importance is None else self.weight * self.importance

    def moved(self, logit: Tensor) -> Tensor:
        """Logits f32[n] in the loss."""
        return logit if self.offset is None else logit + self.offset

    @property
    def counts(self) -> Tensor | None:
        """Examples f32[n] of the whole log that the rows stand for; None: each for itself."""
        if self.importance is None:
            return None
        if self.offset is None:
            return self.importance
        return self.importance * (self.offset * (1 - self.target)).exp()


Loss = Callable[[Tensor, Any], Tensor]
"""Function of logits f32[n] and labels f32[n] in {0, 1, LATE}, or a `Lesson`; returns the sum of the losses,
f32[]."""


def cross_entropy(logit: Tensor, label: Tensor) -> Tensor:
    """Sum of the binary cross entropies of logits f32[n] and labels f32[n]; a late positive is a positive."""
    return binary_cross_entropy_with_logits(logit, label.clamp(max=1.0), reduction="sum")


def weighted_cross_entropy(logit: Tensor, lesson: Lesson) -> Tensor:
    """Weighted sum of the binary cross entropies of logits f32[n].

    Raises:
        TypeError: labels came in place of a lesson.
    """
    if not isinstance(lesson, Lesson):
        raise TypeError("this loss needs a lesson in place of labels")
    return binary_cross_entropy_with_logits(
        lesson.moved(logit), lesson.target, lesson.factor, reduction="sum"
    )


LOSSES: Mapping[str, Loss] = {
    "wait": cross_entropy,
    "vanilla": cross_entropy,
    "fnw": weighted_cross_entropy,
    "es_dfm": weighted_cross_entropy,
}
"""`View.delayed` → loss. Those of "fnw" and "es_dfm" take a `Lesson`, the others labels."""
