"""Values of targets: lognormal and zero-inflated lognormal regression (ZILN; Wang, Liu & Miao 2019).

A value v, such as that of an order, is skewed: a few are large. "A Deep Probabilistic Model for Customer
Lifetime Value Prediction" (arXiv 1912.07753) learns its distribution in place of its mean (§3.2):

    lognormal    log v ~ N(μ, σ²)                                E[v] = exp(μ + σ²/2)
    ziln         v = 0 with probability 1 − p, else lognormal    E[v] = p exp(μ + σ²/2)

    L = log(σ √2π) + log v + (log v − μ)² / (2 σ²)               of v > 0 (eq. 5)
      + CE(p, v > 0)                                             of all v, with ziln (eq. 4)

μ, log odds of p, and z with σ = softplus(z) are logits of three heads. By its own logit, each has the
gradient of a loss of its own, in which the others are numbers:

    μ    (μ − log v)² / (2 σ²)              z    log σ + r² / (2 σ²),  r = log v − μ

Deviations:

- Values are of a target that came, such as an order. Whether it comes is learned by the target's own head,
  with the losses of `models.esmm`; here v is given that.
- Heads have networks of their own, or towers of a shared trunk (`models.multi_task`), where the paper has
  one network with three outputs.
- σ is at least `LEAST`, and the weight 1 / σ² so bounded.
- The first batch with values moves the biases to their mean and spread, and teaches nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from livectr.models.losses import Lesson, Loss

Values = Literal["lognormal", "ziln"]
"""Distribution of a target's values."""
LOCATION, SPREAD, PAID = "value", "spread", "paid"
"""Heads of values: of μ, of z, and of the log odds of p."""
LEAST = 0.05
"""Least σ."""
FARTHEST = 5.0
"""Most σ by which a value's logarithm is apart from μ in a lesson of z: one outlier teaches no more."""


def sigma(spread: Tensor) -> Tensor:
    """σ of logits z."""
    return softplus(spread).clamp(min=LEAST)


def lessons(value: Tensor, location: Tensor, spread: Tensor, known: Tensor) -> dict[str, Lesson]:
    """Lessons of the heads.

    Args:
        value: f32[n], at least 0.
        location: f32[n], μ, from before the batch is learned.
        spread: f32[n], z, likewise.
        known: bool[n], the target came, and has a value.

    Returns:
        Head → lesson, that of `PAID` too. Weights are 0 where a value teaches a head nothing.
    """
    positive = known & (value > 0)
    log = torch.where(positive, value, torch.ones_like(value)).log()
    s = sigma(spread)
    weight = positive.float() / s.square()
    residual = (log - location).square().minimum((FARTHEST * s).square())
    return {
        LOCATION: Lesson(torch.where(positive, log, location), weight),
        SPREAD: Lesson(torch.where(positive, residual, s.square()), positive.float()),
        PAID: Lesson(positive.float(), known.float()),
    }


def location_loss(logit: Tensor, lesson: Lesson) -> Tensor:
    """Sum of (μ − log v)² / (2 σ²); the lesson's weights are 1 / σ²."""
    return (0.5 * (logit - lesson.target).square() * lesson.factor).sum()


def spread_loss(logit: Tensor, lesson: Lesson) -> Tensor:
    """Sum of log σ + r² / (2 σ²); the lesson's targets are r²."""
    s = sigma(logit)
    return ((s.log() + lesson.target / (2 * s.square())) * lesson.factor).sum()


LOSSES: Mapping[str, Loss] = {LOCATION: location_loss, SPREAD: spread_loss}
"""Head that is no probability → loss."""


def curvature(head: str, logit: Tensor, lesson: Lesson) -> float:
    """Fisher information of a bias: Σ 1/σ² of `LOCATION`, Σ 2 (dσ/dz / σ)² of `SPREAD`."""
    if head == LOCATION:
        return float(lesson.factor.double().sum())
    slope = logit.sigmoid() / sigma(logit)
    return float((2 * slope.square() * lesson.factor).double().sum())


def first_logit(head: str, logs: Tensor) -> float:
    """Logit at which a head begins, of the first values' logarithms f32[n], n at least 1."""
    if head == LOCATION:
        return float(logs.double().mean())
    deviation = max(float(logs.double().std()) if len(logs) > 1 else 1.0, 4 * LEAST)
    return math.log(math.expm1(deviation))


def expected(location: Tensor, spread: Tensor, paid: Tensor | None = None) -> Tensor:
    """Expected values f64[n] of a target that came.

    Args:
        location: μ [n].
        spread: z [n].
        paid: log odds [n] of a value above 0; None: all are.
    """
    mean = torch.exp((location.double() + sigma(spread.double()).square() / 2).clamp(max=80.0))
    return mean if paid is None else mean * paid.double().sigmoid()
