"""Targets after a click: the entire space multi-task model (ESMM; Ma et al., SIGIR 2018).

An order comes after a click. A model of orders that learns clicked impressions alone is asked about all of
them (sample selection bias), and has few to learn from. ESMM learns the order over all impressions:

    p(order) = p(click) · p(order | click)      pCTCVR = pCTR × pCVR                   (eq. 1)
    loss = Σ CE(p(click), click) + Σ CE(p(click) · p(order | click), order)            (eq. 3)

With p = p(click), q = p(order | click) = σ(z), the second sum has by z the gradient

    q − 1                       of an impression with an order
    p q (1 − q) / (1 − p q)     of one without

which is that of cross entropy with target 1, and with target 0 and weight p (1 − q) / (1 − p q): the
probability that it was clicked, given that nothing was ordered. So a head of q learns by a `Lesson`, in
every kind of step.

Deviations:

- Heads share tables and rows, not values: each has its own vectors and network. What a head learns does not
  change another. The paper's towers share embeddings, from which rare targets gain.
- No gradient of the second sum goes to p: the click's head learns what it learns alone, to the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from livectr.models.losses import Lesson


def after_click(click: Tensor, given: Tensor, label: Tensor) -> Lesson:
    """Lesson of the head that predicts a target, given a click.

    Args:
        click: logits f32[n] of the click.
        given: logits f32[n] of the head.
        label: f32[n] in {0, 1}, of the target.
    """
    p, q = click.double().sigmoid(), given.double().sigmoid()
    weight = p * (1 - q) / (1 - p * q).clamp(min=1e-12)
    return Lesson(label, torch.where(label > 0.5, 1.0, weight).float())


def of_whole(click: Tensor, given: Tensor, lesson: Lesson) -> Lesson:
    """Lesson of the head, of a lesson of the target: a positive part t w, and a negative part (1 − t) w.

    Args:
        click: see `after_click`.
        given: see `after_click`.
        lesson: targets t in [0, 1] and weights w of p(click) · p(target | click).
    """
    ones = torch.ones_like(lesson.target)
    yes = lesson.target * lesson.weight
    no = (1 - lesson.target) * lesson.weight * after_click(click, given, 0 * ones).weight
    weight = yes + no
    return Lesson(yes / weight.clamp(min=torch.finfo(weight.dtype).tiny), weight)
