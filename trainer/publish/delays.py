"""Delays from an event to the version that has learned it, over a run."""

from __future__ import annotations

import math
from collections import Counter

from livectr.store.manifest import Freshness

DIGITS = 3
"""Significant digits of a delay, so that few different ones are kept however long a run is."""


class Delays:
    """Histogram of event-to-servable delays of a trainer's versions."""

    def __init__(self) -> None:
        self._counts: Counter[float] = Counter()

    def add(self, freshness: Freshness, now_ms: int) -> None:
        """Add the examples of a version.

        Args:
            freshness: event times that the version learned.
            now_ms: time at which it became servable, ms since 1970.
        """
        for start_ms, count in zip(freshness.bin_ms, freshness.counts, strict=True):
            self._counts[_rounded(max(0.0, (now_ms - start_ms) / 1000))] += count

    def report(self) -> dict[str, float]:
        """examples, p50_s and p99_s; {} where no version has learned an example."""
        examples = self._counts.total()
        if not examples:
            return {}
        return {"examples": examples, "p50_s": self._quantile(0.5), "p99_s": self._quantile(0.99)}

    def _quantile(self, share: float) -> float:
        wanted, seen, delay = share * self._counts.total(), 0, 0.0
        for delay in sorted(self._counts):
            seen += self._counts[delay]
            if seen >= wanted:
                break
        return delay


def _rounded(delay_s: float) -> float:
    """Delay with few digits, rounded up."""
    if delay_s == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(delay_s)) - DIGITS + 1)
    return round(math.ceil(delay_s / unit - 1e-9) * unit, 6)
