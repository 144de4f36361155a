"""Sums of nested counters, as checkpoints, reports and versions hold them."""

from collections.abc import Mapping, Sequence
from typing import Any


def summed(counters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the counters of all ranks, nested counters too."""
    total: dict[str, Any] = {}
    for counter in counters:
        for name, value in counter.items():
            if isinstance(value, dict):
                total[name] = summed([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total
