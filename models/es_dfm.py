"""ES-DFM, completed by final labels: learn impressions after a short wait, with the clicks still to come.

Yang et al., "Capturing Delayed Feedback in Conversion Rate Prediction via Elapsed-Time Sampling", AAAI 2021.
An impression is observed after an elapsed time: as a positive if its click has come, else as a negative, and
once more as a positive when its click comes (§ "Elapsed-Time Sampling Delayed Feedback Model"). Importance
weights lead from these observations back to final labels. Two heads give them, p_dp and p_rn in the paper,
and no gradient goes through.

Here the elapsed time is the `wait` of `label_join`. Of an impression with features x let

    c = P(click in the window | x)      t = P(click within the wait | x)      r = (1 − c) / (1 − t)

r is p_rn, the probability that an observed negative is real. In the paper such a negative is learned with
weight r, and the share 1 − r that it lacks comes back as late positives. For a key that is shown evenly both
come side by side. When it stops, its late positives come alone for a window and push it far above c.

**Loss.** So nothing is put off here. An observed negative is learned at once as r negatives and 1 − r
positives, and a late positive teaches the main model nothing. What the heads get wrong, finals mend: each
impression is learned once more, with its final label y, when its window has passed.

    click within the wait    EARLY · -log p
    provisional negative     EARLY · (-(1 − r) log p - r log(1 − p))
    late positive            0
    final                    -y log p - (1 − y) log(1 − p)

With a head's c' for c, the mean gradient of an impression by its logit is, where it leaves,

    t (p − 1) + (1 − t) (p − (1 − r)) = p − c'         of weight EARLY

and p − c where its window ends: each is 0 at p = c by itself, if c' = c. So it is in every phase of a key:
while it runs both, from its start the first, after its stop the second, while it pauses none. An error of c'
moves p by EARLY / (1 + EARLY) of it while the key runs, and is gone a window after it has stopped.

**Heads.** Two models predict the rates:

    clicked   c, over finals; and over what is known before, clicks that have come and impressions without, of
              weight ARRIVED: a key that is new, or a run before its first window has passed, then knows more
              than nothing. That pulls c' down to t for as long, and by ARRIVED d later, d = c − t
    in_time   t, over impressions when they leave after their wait: what comes later does not change whether a
              click had come by then

A head scores an impression before it learns it. (The paper's public code labels the heads' data with clicks
that come after its end.)

Deviations, beside the loss:

- The paper's heads predict c − t and r themselves, from labels that are known when the window has passed.
  Both then follow delays that drift one window behind. Here r comes from rates whose labels are known as
  early as possible. Delays are in t alone, which is learned without delay.
- Heads learn online, where the paper trains them once on past data and keeps them.
- A head is a logistic regression over the same keys, with rows of its own (`LR`), where the paper has
  a network as large as the model. c and t are rates of ads, categories and users, which are sums of first
  orders in log odds; 2 floats cross the ranks for each example.
- r is in [`LEAST`, 1]: heads that disagree make no weight negative, and a head that is wrong cannot silence
  all negatives of an ad.
- The elapsed time is the same for all impressions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from livectr.kernels.stream.join import FINAL_NEGATIVE, LATE_POSITIVE, NEGATIVE, POSITIVE
from livectr.models.base import ModelConfig
from livectr.models.losses import Lesson
from livectr.models.lr import LR

HEADS: Mapping[str, ModelConfig] = {"clicked": LR(), "in_time": LR()}
LEAST = 0.05
"""Least r."""
EARLY = 0.3
"""Weight of what is learned before labels are final."""
ARRIVED = 0.1
"""Weight, for the head `clicked`, of what is known before labels are final."""


def lessons_of_heads(outcome: Tensor) -> dict[str, Lesson]:
    """Lessons of the heads.

    Args:
        outcome: f32[n], NEGATIVE, POSITIVE or LATE_POSITIVE, or of a final FINAL_NEGATIVE, FINAL_POSITIVE or
            FINAL_LATE (`kernels.stream.join`).

    Returns:
        Head → lesson.
    """
    clicked = (outcome != NEGATIVE) & (outcome != FINAL_NEGATIVE)
    return {
        "clicked": Lesson(clicked.float(), torch.where(outcome >= FINAL_NEGATIVE, 1.0, ARRIVED)),
        "in_time": Lesson((outcome == POSITIVE).float(), (outcome < LATE_POSITIVE).float()),
    }


def expected_labels(outcome: Tensor, clicked: Tensor, in_time: Tensor) -> Lesson:
    """Lesson of the main model; its loss is `models.losses.weighted_cross_entropy`.

    Args:
        outcome: f32[n], as `lessons_of_heads` takes it.
        clicked: f32[n], logits of c.
        in_time: f32[n], logits of t.
    """
    # The ratio of two numbers near 0 is taken by their logarithms.
    r = (logsigmoid(-clicked.detach()) - logsigmoid(-in_time.detach())).exp().clamp(LEAST, 1.0)
    final = outcome >= FINAL_NEGATIVE
    expected = torch.where(outcome == NEGATIVE, 1 - r, torch.ones_like(r))
    weight = EARLY * (outcome != LATE_POSITIVE).float()
    return Lesson(
        torch.where(final, (outcome > FINAL_NEGATIVE).float(), expected),
        torch.where(final, torch.ones_like(r), weight),
    )
