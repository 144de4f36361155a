"""Means over seeds, and the significance of their difference (Student's t, paired by seed).

    d_s = b_s − a_s,   mean(d) ± t₀.₉₇₅(n − 1) sd(d) / √n

Both variants of a seed are trained on the same log from the same seed, so the effect of a seed on both
cancels. The interval covers other seeds: initial values, and the log where every seed has its own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NAN = float("nan")


@dataclass(frozen=True)
class Gain:
    """A mean difference and half of its 95 % interval, NaN with fewer than two seeds."""

    mean: float
    half_width: float

    @property
    def sure(self) -> bool:
        """0 is outside of the interval."""
        return abs(self.mean) > self.half_width  # False where that is NaN


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """(mean, standard deviation with n − 1); NaN for no value, and for the deviation of a single value."""
    if not values:
        return NAN, NAN
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else NAN


def gain(a: Sequence[float], b: Sequence[float]) -> Gain:
    """Gain of b over a, paired by position. Raises ValueError for other lengths."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} seeds cannot be paired")
    mean, spread = mean_and_spread([y - x for x, y in zip(a, b, strict=True)])
    if len(a) < 2:
        return Gain(mean, NAN)
    return Gain(mean, t_quantile(len(a) - 1) * spread / math.sqrt(len(a)))


def t_quantile(degrees: int, inside: float = 0.95) -> float:
    """t with P(|T| < t) = `inside` for Student's T with at least 1 degree of freedom."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < inside else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """P(|T| < t), Abramowitz & Stegun 26.7.3 (odd degrees) and 26.7.4 (even)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, odd = math.cos(angle), degrees % 2
    term, total = cosine if odd else 1.0, 0.0
    for k in range(2 if odd else 1, degrees, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
