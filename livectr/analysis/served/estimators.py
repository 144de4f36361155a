"""Off-policy estimates: rewards of a policy from the log of another one, which knew its propensities.

A request has K places, and the reward of each may depend on what stands there and above it, not below. So an
answer of k places is one action, and the estimates of the places are added (McInerney et al., 2020, §3). With
weights w = target's probability ÷ propensity of the first k places, rewards r, and a model q of the reward:

    IPS      mean of w · r                                          (Horvitz & Thompson, 1952)
    SNIPS    mean of w · r ÷ mean of w                              (Swaminathan & Joachims, 2015, eq. 9)
    DR       mean of q(target) + w · (r − q(shown))                 (Dudík et al., 2011, eq. 1)
    matched  mean of r where the answer was the target's: biased, as these requests are no random sample

Intervals are normal, of 95 %, with users as units: requests of a user are not independent. That of SNIPS is
by the delta method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from livectr.serving.served.record import F64, I64

Z = 1.959963984540054
"""Quantile of the normal distribution for intervals of 95 %."""


@dataclass(frozen=True)
class Pages:
    """n requests, whose first K places were shown.

    Args:
        weight: f64[n, K], probability under the target of the first 1 … K places over their propensity.
        reward: f64[n, K], of the places.
        shown, target: f64[n, K], reward that a model expects at each place: of what was shown, and of what
            the target shows. The model must not have learned these rewards.
        user: i64[n], key of the user.
    """

    weight: F64
    reward: F64
    shown: F64
    target: F64
    user: I64


@dataclass(frozen=True)
class Estimate:
    """Mean reward of a request.

    Args:
        of: "log", "matched", "ips", "snips" or "dr".
        mean, low, high: estimate and its interval of 95 %.
        gain: the estimate minus the mean of the log.
        gain_low, gain_high: its interval.
    """

    of: str
    mean: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float


def effective(weight: F64) -> float:
    """Effective sample size of weights f64[n]: (Σ w)² ÷ Σ w² (Kish, 1965); 0 where all are 0."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0


def estimates(pages: Pages) -> list[Estimate]:
    """All estimates; a weight is above 0 at each place of a request at least."""
    n, (weight, reward) = len(pages.user), (pages.weight, pages.reward)
    log = reward.sum(1)
    matched: F64 = (weight[:, -1] > 0).astype(np.float64)
    terms = {
        "log": log,
        "matched": _ratio(matched[:, None], log[:, None]),
        "ips": (weight * reward).sum(1),
        "snips": _ratio(weight, reward),
        "dr": (pages.target + weight * (reward - pages.shown)).sum(1),
    }
    found = []
    for name, each in terms.items():
        mean, half = _interval(each, pages.user)
        gain, apart = _interval(each - log, pages.user)
        found.append(Estimate(name, mean, mean - half, mean + half, gain, gain - apart, gain + apart))
    assert all(len(each) == n for each in terms.values())
    return found


def _ratio(weight: F64, reward: F64) -> F64:
    """Terms f64[n] whose mean is Σ over places of Σ w r ÷ Σ w, with its variance by the delta method."""
    share = weight / weight.mean(0)
    mean = (share * reward).mean(0)
    terms: F64 = (mean + share * (reward - mean)).sum(1)
    return terms


def _interval(terms: F64, user: I64) -> tuple[float, float]:
    """Mean of terms f64[n], and half the width of its interval, with users as units."""
    mean = float(terms.mean())
    _, of = np.unique(user, return_inverse=True)
    sums = np.bincount(of, weights=terms - mean).astype(np.float64)
    units = len(sums)
    if units < 2:
        return mean, float("inf")
    variance = float((sums**2).sum()) * units / (units - 1) / len(terms) ** 2
    return mean, Z * variance**0.5
