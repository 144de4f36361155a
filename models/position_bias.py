"""Position bias by PAL, position-bias aware learning (Guo et al., RecSys 2019).

An item is clicked if the user sees it, which depends on its place alone, and then wants it (§3.1, eq. 1-3):

    p(click | x, place) = p(seen | place) · p(click | x, seen) = s · q

Both factors are learned together, by the cross entropy of their product (§3.2, eq. 4). Servers leave out the
first: places are not known before items are ranked (§3.2, Figure 2b).

With s = σ(u) and q = σ(z), the loss of an example has the gradients

    by z    q − 1 of a click;  s q (1 − q) / (1 − s q) without one
    by u    s − 1 of a click;  s q (1 − s) / (1 − s q) without one

The first is that of cross entropy with the weight s (1 − q) / (1 − s q), the probability that the item was
seen, given that it was not clicked. So a model of clicks learns by a `Lesson` (`models.esmm.after_click` has
the same form: seen, then clicked), in every kind of step. An item at a place that nobody looks at teaches it
nothing by being ignored.

Deviations:

- The product alone leaves a factor open: c s and q / c predict the same. Here the first place, the least
  number that the log has, has s = 1. So q is the click rate at the first place, s is relative to it, and what
  is served has a unit. No place is seen more often than the first.
- s is one number by place, without other features of the context (the paper's module takes more).
- u learns by natural gradients, with the Fisher information h of all examples so far:

      h ← h + Σ s q (1 − s)² / (1 − s q)      u ← u − Σ g / √(h `EARLY`)      from u = 0, h = `EARLY` on

  Their pace does not depend on the click rate. Steps of 1/h would be those of the mean over all examples, if
  q were right from the start. It is not, and what u has learned beside a wrong q has to wear off: so steps
  are those of 1/√h. h is at most `MEMORY`, so that a curve follows pages that change. The paper trains the
  module by the optimiser of the network.
- Each model of clicks (pre-rank, challengers, shadows) has a curve of its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EARLY = 3.0
"""Information h before the first example, at which steps are 1/h."""
MEMORY = 10_000.0
"""Most information h."""
LARGEST_STEP = 1.0
"""Most by which a batch moves u."""


class Curve:
    """Curve of one model: p(seen) by place.

    Args:
        places: K; places are numbers below it.

    Attributes:
        logit: f64[K], u of each place; that of the first is infinite.
        information: f64[K], h of each place.
        first: the first place; K before the first example.
    """

    def __init__(self, places: int) -> None:
        self.logit = torch.zeros(places, dtype=torch.float64)
        self.information = torch.full((places,), EARLY, dtype=torch.float64)
        self.first = places

    def meet(self, place: Tensor) -> None:
        """Let the least of places int64[n] be the first from here on."""
        if not len(place) or (least := int(place.min())) >= self.first:
            return
        if self.first < len(self.logit):  # what was first has a place among the others
            self.logit[self.first], self.information[self.first] = 0.0, EARLY
        self.first, self.logit[least] = least, math.inf

    def of(self, place: Tensor) -> Tensor:
        """Logits f64[n] of being seen at places int64[n]."""
        return self.logit[place]

    @property
    def seen(self) -> dict[int, float]:
        """Place → p(seen), of the places that have taught something."""
        known = self.information != EARLY
        if self.first < len(known):
            known[self.first] = True
        return {int(k): float(self.logit[k].sigmoid()) for k in known.nonzero()}

    def learn(self, place: Tensor, logit: Tensor, label: Tensor, weight: Tensor) -> None:
        """Learn examples, as they were scored.

        Args:
            place: int64[n].
            logit: f64[n], z of the model.
            label: f64[n], 0 or 1.
            weight: f64[n], at least 0; 0 teaches nothing.
        """
        s, q = self.of(place).sigmoid(), logit.sigmoid()
        unclicked = (1 - s * q).clamp(min=1e-12)
        slope = torch.where(label > 0.5, s - 1, s * q * (1 - s) / unclicked) * weight
        fisher = s * q * (1 - s).square() / unclicked * weight
        if not bool((slope.isfinite() & fisher.isfinite()).all()):
            return  # of logits that are no numbers: the step learns nothing of this batch, either
        slopes, more = (torch.bincount(place, by, len(self.logit)) for by in (slope, fisher))
        self.information = (self.information + more).clamp(max=MEMORY)
        step = (slopes / (self.information * EARLY).sqrt()).clamp(-LARGEST_STEP, LARGEST_STEP)
        step[: self.first + 1] = 0.0
        self.logit = self.logit - step
