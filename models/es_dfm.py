"""ES-DFM: learn impressions after a short wait, and weigh them by the clicks that are still to come.

Yang et al., "Capturing Delayed Feedback in Conversion Rate Prediction via Elapsed-Time Sampling", AAAI 2021.
An impression is observed after an elapsed time: as a positive if its click has come, else as a negative, and
once more as a positive when its click comes (§ "Elapsed-Time Sampling Delayed Feedback Model"). Importance
weights lead from these observations back to final labels. Two heads give
them, p_dp and p_rn in the paper, and no gradient goes through.

**Weights.** Here the elapsed time is the `wait` of `label_join`. Of an impression with features x let

    c = P(click in the window | x)      d = P(click in the window, but after the wait | x)

It leaves as a positive within the wait with probability c − d, as a provisional negative with 1 − c + d, and
once more as a late positive with d. Of its 1 + d observations in the mean

    q(positive) = c / (1 + d)           q(negative) = (1 − c + d) / (1 + d)

and the ratios of the true probabilities to these are the weights of the paper:

    c / q(positive) = 1 + d             (1 − c) / q(negative) = (1 + d) r,    r = (1 − c) / (1 − c + d)

    L = − Σ y (1 + d) log p + (1 − y) (1 + d) r log(1 − p)

r is the probability that an observed negative is real. The expected gradient of an impression by its logit is

    c (1 + d) (p − 1) + (1 − c + d) (1 + d) r p  =  (1 + d) (p − c)

so it vanishes at p = c, whatever the delays are: where d differs between ads, the order of ads is right. A
click within the wait leaves once and is learned once, without the second term of models.fnw. The factor
1 + d moves no zero. It weighs an impression by its observations, and is kept as in the paper.

**Heads.** Two models predict the rates that the weights are made of:

    clicked   c, over finals: each impression leaves once more when its window has passed, and only then it
              is known whether it was clicked
    in_time   t = P(click within the wait | x) = c − d, over impressions when they leave after their wait:
              what comes later does not change whether a click had come by then

    d = c − t       r = (1 − c) / (1 − t)

A head scores an impression before it learns it, and nothing of an open window reaches `clicked`. (The paper's
public code labels the heads' data with clicks that come after its end.)

Delays are in t alone, and t is learned without delay. A wrong c does little harm: with c' in its place the
expected gradient vanishes at p = c / (1 + c − c'), so an error of c reaches p multiplied by c. With c' = t,
which knows of no late click, that is vanilla's c / (1 + d).

Deviations:

- The paper's heads predict d and r themselves, from labels that are known when the window has passed. Both
  then follow delays that drift one window behind. Here r and d come from rates whose labels are known as
  early as possible. On the log of bench.delayed this raises the R-AUC from 0.35 to 0.63.
- Heads learn online, where the paper trains them once on past data and keeps them. Until the first window has
  passed, `clicked` says what it starts with, 0.05, and the loss is nearly cross entropy.
- A head is a logistic regression over the same keys, with rows of its own (`LR`), where the paper has
  a network as large as the model. c and t are rates of ads, categories and users, which are sums of first
  orders in log odds; 2 floats cross the ranks for each example, and nothing of the main model is shared, so
  that finals cannot move it.
- d is at least 0, and r in [`LEAST`, 1]: heads that disagree make no weight negative, and a head that is
  wrong cannot silence all negatives of an ad. 1 + d is at most 2.
- The elapsed time is the same for all impressions.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import logsigmoid

from livectr.kernels.stream.join import FINAL_LATE, FINAL_NEGATIVE, FINAL_POSITIVE, LATE_POSITIVE, POSITIVE
from livectr.models.base import ModelConfig
from livectr.models.losses import Lesson
from livectr.models.lr import LR

HEADS: Mapping[str, ModelConfig] = {"clicked": LR(), "in_time": LR()}
LEAST = 0.05
"""Least r."""


def lessons_of_heads(outcome: Tensor) -> dict[str, Lesson]:
    """Targets of the heads.

    Args:
        outcome: f32[n], labels; of finals FINAL_NEGATIVE, FINAL_POSITIVE or FINAL_LATE
            (`kernels.stream.join`). Finals teach `clicked`; provisional negatives and clicks within the wait
            teach `in_time`; late positives teach neither.

    Returns:
        Head → lesson.
    """
    clicked = (outcome == FINAL_POSITIVE) | (outcome == FINAL_LATE)
    return {
        "clicked": Lesson(clicked.float(), (outcome >= FINAL_NEGATIVE).float()),
        "in_time": Lesson((outcome == POSITIVE).float(), (outcome < LATE_POSITIVE).float()),
    }


def importance_weighted(label: Tensor, clicked: Tensor, in_time: Tensor) -> Lesson:
    """Lesson of the main model; its loss is `models.losses.weighted_cross_entropy`.

    Args:
        label: f32[n]: 0 is a provisional negative, 1 a click within the wait, `LATE` a late positive.
        clicked: f32[n], logits of c.
        in_time: f32[n], logits of t.
    """
    y, clicked, in_time = label.clamp(max=1.0), clicked.detach(), in_time.detach()
    d = (clicked.sigmoid() - in_time.sigmoid()).clamp(min=0)
    # The ratio of two numbers near 0 is taken by their logarithms.
    r = (logsigmoid(-clicked) - logsigmoid(-in_time)).exp().clamp(LEAST, 1.0)
    return Lesson(y, (1 + d) * (y + (1 - y) * r))
