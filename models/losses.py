"""Losses of a batch, by the way in which labels that come late are learned (`ingest.language.delays`).

A label is 0, 1, or `LATE` for a late positive: an impression that was learned before as a provisional
negative, and has got its click since. Each loss is a sum over the examples of a batch.

    wait, vanilla    binary cross entropy, as `torch.nn.functional` has it
    fnw              models.fnw
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from livectr.models.fnw import LATE, fake_negative_weighted

__all__ = ["LATE", "LOSSES", "cross_entropy", "fake_negative_weighted"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of logits f32[n] and labels f32[n] in {0, 1, LATE}; returns the sum of the losses, f32[]."""


def cross_entropy(logit: Tensor, label: Tensor) -> Tensor:
    """Sum of the binary cross entropies of logits f32[n] and labels f32[n]; a late positive is a positive."""
    return binary_cross_entropy_with_logits(logit, label.clamp(max=1.0), reduction="sum")


LOSSES: Mapping[str, Loss] = {"wait": cross_entropy, "vanilla": cross_entropy, "fnw": fake_negative_weighted}
"""`View.delayed` → loss."""
