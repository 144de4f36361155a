"""Fake-negative weighted loss, completed by final labels: learn impressions at once, and clicks as they come.

Ktena et al., "Addressing Delayed Feedback for Continuous Training with Neural Networks in CTR prediction",
RecSys 2019. There every impression is learned as a negative when it is shown, and again as a positive when it
is clicked. Of these examples 1 / (1 + p) are negatives, and not 1 - p. Importance sampling undoes that with
the model's own p = σ(z), through which no gradient goes:

    L = - Σ y (1 + p) log σ(z) + (1 - y) (1 - p) (1 + p) log(1 - σ(z))

An impression with click rate c has the expected gradient (1 + p) (1 - p) (p - c), whatever the delays are. It
vanishes where σ(z) is the rate of *final* labels, if an impression and its late click come with equal rates.

Deviations:

- In the paper nothing waits. Here an impression whose click comes within the wait leaves once. Without its
  negative, p would converge to c / (1 - c t), with t the share of clicks within the wait. So it is learned
  with both terms, as if it had left at once, and its click right after it.
- A key that stops gets late positives and no negatives: p rises without bound. So an impression is learned
  once more, by cross entropy with its final label, when its window has passed, and the loss of the paper has
  the weight `EARLY` beside it:

    provisional negative     EARLY · (1 - p) (1 + p) · -log(1 - σ(z))
    click within the wait    EARLY · ((1 - p) (1 + p) · -log(1 - σ(z))  +  (1 + p) · -log σ(z))
    late positive            EARLY · (1 + p) · -log σ(z)
    final                    -y log σ(z) - (1 - y) log(1 - σ(z))

**In each phase** of a key with λ impressions a second, of whose late clicks a share G(τ) is still to come τ
after their impression, the mean gradient by z at p = c + e is about λ times

    running          e + EARLY (1 - c²) e              zero at e = 0
    stopped since τ  e - EARLY (1 - c²) c s G(τ)       e is at most EARLY s c, a tenth of c, and is 0
                                                       with G(τ), before the last final
    started since τ  EARLY (1 - c²) (e + c s G(τ))     before its first final: p follows the clicks that have
                                                       come, as in the paper
    resumed          as started; with the rates of a key that has learned finals, EARLY moves it little

with s the share of clicks after the wait. In the paper's loss the first e of the second line is missing, and
nothing holds p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from livectr.kernels.stream.join import FINAL_NEGATIVE, LATE_POSITIVE, NEGATIVE
from livectr.models.losses import Lesson

EARLY = 0.1
"""Weight of what is learned before labels are final."""


def fake_negative_weighted(logit: Tensor, outcome: Tensor) -> Lesson:
    """Lesson of the loss; its loss is `models.losses.weighted_cross_entropy`.

    Args:
        logit: f32[n], from before the batch is learned.
        outcome: f32[n], NEGATIVE, POSITIVE or LATE_POSITIVE, or of a final FINAL_NEGATIVE, FINAL_POSITIVE or
            FINAL_LATE (`kernels.stream.join`).
    """
    p = logit.detach().sigmoid()
    clicked = ((outcome != NEGATIVE) & (outcome != FINAL_NEGATIVE)).float()
    shown = (outcome < LATE_POSITIVE) * (1 - p)
    early = EARLY * (1 + p) * (clicked + shown)
    final = outcome >= FINAL_NEGATIVE
    return Lesson(
        torch.where(final, clicked, clicked / (clicked + shown).clamp(min=torch.finfo(p.dtype).tiny)),
        torch.where(final, torch.ones_like(p), early),
    )
