"""Losses of a batch, by the way in which labels that come late are learned (`ingest.language.delays`).

A label is 0, 1, or `LATE` for a late positive: an impression that was learned before as a provisional
negative, and has got its click since. Each loss is a sum over the examples of a batch.

    wait, vanilla    binary cross entropy, as `torch.nn.functional` has it
    fnw              models.fnw
    es_dfm           models.es_dfm: its heads give each example a target and a weight
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from livectr.models.fnw import LATE, fake_negative_weighted

__all__ = ["LATE", "LOSSES", "Lesson", "cross_entropy", "fake_negative_weighted", "weighted_cross_entropy"]


class Lesson(NamedTuple):
    """Targets f32[n] in {0, 1} and weights f32[n] of at least 0 of examples; weight 0 teaches nothing."""

    target: Tensor
    weight: Tensor


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
        raise TypeError("the loss of es_dfm needs a lesson, which its heads give")
    return binary_cross_entropy_with_logits(logit, lesson.target, lesson.weight, reduction="sum")


LOSSES: Mapping[str, Loss] = {
    "wait": cross_entropy,
    "vanilla": cross_entropy,
    "fnw": fake_negative_weighted,
    "es_dfm": weighted_cross_entropy,
}
"""`View.delayed` → loss. That of "es_dfm" takes a `Lesson`, the others labels."""
