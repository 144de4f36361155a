"""Importance weights, and logs that keep a share of their negatives.

    loss        ℓ_i = w_i · CE(σ(z_i − log r_i), y_i)
    measures    example i counts w_i, and w_i / r_i if it has no click

w_i is the pipeline's `weight`, r_i its `sampling`: the rate at which the log kept examples without a click.

In such a log the odds of a click are 1/r times those of the whole log. So a model that learned it as it is
would have to be corrected when it is served, q = p / (p + (1 − p) / r) (He et al. 2014, §6.3), which is
log r in the logit. Here the correction is in training: the logit z that is served is that of the whole log,
and the loss adds −log r, example by example. So rates may differ by example, and may change while a run goes
on. It is the likelihood of the log that is there (a prior correction; King & Zeng 2001).

*Deviation*. McMahan et al. (2013, §4.6) weigh a kept negative by 1/r instead. Both are unbiased; that one
has steps of 1/r times the size, which rates by coordinate as of AdaGrad and FTRL answer with lower rates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from livectr.models.losses import Lesson


def weighted(lesson: Lesson, weights: Tensor) -> Lesson:
    """Give rows their weights.

    Args:
        lesson: targets, and weights by which labels are sure.
        weights: f32[n, 2], w and r of each row.
    """
    importance, rate = weights.T.contiguous()
    whole = bool((rate == 1).all())
    return lesson._replace(importance=importance, offset=None if whole else -rate.log())


def plain(label: Tensor) -> Lesson:
    """Lesson of labels f32[n] that are sure; above 1 (`models.losses.LATE`) is a click."""
    target = label.clamp(max=1.0)
    return Lesson(target, torch.ones_like(target))


def counts(weights: Tensor, label: Tensor) -> Tensor:
    """Examples f32[n] of the whole log that rows stand for.

    Args:
        weights: f32[n, 2], w and r of each row.
        label: f32[n] in {0, 1}, of the click.
    """
    weight, rate = weights.T
    return torch.where(label > 0.5, weight, weight / rate)
