"""Fake-negative weighted loss: learn impressions at once, and their clicks when they come.

Ktena et al., "Addressing Delayed Feedback for Continuous Training with Neural Networks in CTR prediction",
RecSys 2019. There every impression is learned as a negative when it is shown, and again as a positive when it
is clicked. Of these examples 1 / (1 + p) are negatives, and not 1 - p. Importance sampling undoes that with
the model's own p = σ(z), through which no gradient goes:

    L = - Σ y (1 + p) log σ(z) + (1 - y) (1 - p) (1 + p) log(1 - σ(z))

An impression with click rate c has the expected gradient (1 + p) (1 - p) (p - c), whatever the delays are. It
vanishes where σ(z) is the rate of *final* labels.

Deviation: in the paper nothing waits. Here an impression whose click comes within the wait leaves once.
Without its negative, p would converge to c / (1 - c t), with t the share of clicks within the wait. So it is
learned with both terms, as if it had left at once, and its click right after it:

    provisional negative     (1 - p) (1 + p) · -log(1 - σ(z))
    click within the wait    (1 - p) (1 + p) · -log(1 - σ(z))  +  (1 + p) · -log σ(z)
    late positive                                                 (1 + p) · -log σ(z)
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

LATE = 2.0
"""Label of a late positive."""


def fake_negative_weighted(logit: Tensor, label: Tensor) -> Tensor:
    """Sum of the weighted losses.

    Args:
        logit: f32[n].
        label: f32[n]: 0 is a provisional negative, 1 a click within the wait, `LATE` a late positive.

    Returns:
        f32[].
    """
    p = logit.detach().sigmoid()
    clicked = (label > 0) * softplus(-logit)
    shown = (label < LATE) * (1 - p) * softplus(logit)
    return ((1 + p) * (clicked + shown)).sum()
