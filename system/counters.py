"""Counter of Prometheus: two calls of Python for a request, where prometheus_client takes five."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Total:
    """Sum of a counter for a value of each label."""

    def __init__(self) -> None:
        self.value = 0.0
        self._lock = threading.Lock()

    def inc(self, amount: float = 1) -> None:
        """Add to the sum."""
        with self._lock:
            self.value += amount


class LabelledCounter(Collector):
    """Counter, for each value of its labels.

    Args:
        name: of the metric, which ends with `_total`.
        help: of the metric.
        labels: names.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._totals: dict[tuple[str, ...], Total] = {}

    def labels(self, *values: str) -> Total:
        """Sum of a value for each label, which exists from here on."""
        return self._totals.get(values) or self._totals.setdefault(values, Total())

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Metrics in the form of prometheus_client."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, total in list(self._totals.items()):
            family.add_metric(values, total.value)
        yield family


def count_each(amounts: Iterable[tuple[LabelledCounter, tuple[str, ...], float]]) -> None:
    """Add an amount to each of some sums, given by counter and labels, in a single call of Python."""
    for counter, labels, amount in amounts:
        total = counter._totals.get(labels) or counter._totals.setdefault(labels, Total())
        with total._lock:
            total.value += amount
