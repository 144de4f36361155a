"""Axes of charts: limits, round ticks and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
PROBABILITIES = (0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)


@dataclass(frozen=True)
class Axis:
    """Axis of a chart.

    Attributes:
        low, high: limits; high > low.
        ticks: values with their labels.
        label: title of the axis.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    label: str

    def share(self, value: float) -> float:
        """Place of a value, 0 at the low end and 1 at the high end; values beyond are at the end."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def linear(
    values: Sequence[float], label: str, *, from_zero: bool = False, exact: bool = False, most: int = 6
) -> Axis:
    """Axis with round ticks that holds all values.

    Args:
        values: that the axis holds; empty: it goes from 0 to 1.
        label: of the axis.
        from_zero: the axis begins at 0.
        exact: the axis ends at the largest value, else at the tick above.
        most: ticks, about.
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(low, 0.0) if from_zero else low
    if high - low <= 1e-12 * max(abs(high), 1e-9):
        low, high = (
            (low, low + 1.0) if from_zero else (low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1))
        )
    step = _step((high - low) / (most - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((i * step, short(i * step, step)) for i in range(first, last + 1))
    if exact:
        return Axis(low, high, tuple(tick for tick in ticks if low <= tick[0] <= high * (1 + 1e-9)), label)
    return Axis(first * step, last * step, ticks, label)


def clock(times_ms: Sequence[float], label: str, most: int = 4) -> Axis:
    """Axis of times in ms since 1970, labelled in UTC."""
    low, high = min(times_ms, default=0.0), max(times_ms, default=1000.0)
    high = max(high, low + 1000.0)
    span_s = (high - low) / 1000
    step_s = next((s for s in SECONDS if span_s / s <= most), 86400 * math.ceil(span_s / 86400 / most))
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if span_s < 86400 else "%m-%d %H:%M"
    form = "%m-%d" if step_s >= 86400 else form
    first = math.ceil(low / 1000 / step_s)
    at = [1000.0 * step_s * i for i in range(first, math.floor(high / 1000 / step_s) + 1)]
    ticks = tuple((t, datetime.fromtimestamp(t / 1000, UTC).strftime(form)) for t in at)
    return Axis(low, high, ticks, label)


def log_odds(low: float, high: float, label: str) -> Axis:
    """Axis of logits, labelled by their probabilities."""
    named = [(math.log(p / (1 - p)), f"{100 * p:g} %") for p in PROBABILITIES]
    return Axis(low, high, tuple((z, text) for z, text in named if low <= z <= high), label)


def short(value: float, step: float | None = None) -> str:
    """Number in few characters: 1.2M, 350k, 0.725."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * (1 if unit > 1e3 else 10):
            return f"{value / unit:.3g}{name}"
    if step is not None and step < 1:
        return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"
    return f"{value:,.0f}" if size >= 100 or value == round(value) else f"{value:.3g}"


def _step(least: float) -> float:
    """Smallest of 1, 2, 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= least * (1 - 1e-9))
