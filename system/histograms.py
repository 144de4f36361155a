"""Histograms of Prometheus that take many values at a time."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Counts:
    """Counts of a histogram.

    Args:
        bounds: f64[n], rising upper bounds.

    Attributes:
        lock: of the counts i64[n + 1] and the sum.
    """

    def __init__(self, bounds: F64) -> None:
        self.bounds = bounds
        self.lock = threading.Lock()
        self.counts: Any = np.zeros(len(bounds) + 1, np.int64)
        self.sum = 0.0

    def add(self, counts: I64, total: float) -> None:
        """Add values that are counted already, i64[n + 1] up to each bound and above all, and their sum."""
        with self.lock:
            self.counts += counts
            self.sum += total

    def rising(self) -> I64:
        """Number of the values up to each bound, and of all: i64[n + 1]."""
        with self.lock:
            return np.cumsum(self.counts)

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the series of some labels to a family."""
        with self.lock:
            rising, total = np.cumsum(self.counts), self.sum
        buckets = [(str(bound), float(n)) for bound, n in zip(self.bounds, rising[:-1], strict=True)]
        family.add_metric(labels, [*buckets, ("+Inf", float(rising[-1]))], total)


class Buckets(Counts):
    """Counts of a histogram, observed many at a time.

    One NumPy pass adds them; the histogram of prometheus_client would need a call for each value.
    """

    def observe(self, values: F64, counts: I64 | None = None) -> None:
        """Add values f64[n], each once, or counts[i] times."""
        place = np.searchsorted(self.bounds, values, side="left")
        if counts is None:
            self.add(np.bincount(place, minlength=len(self.counts)), float(values.sum()))
        else:
            added = np.zeros_like(self.counts)
            np.add.at(added, place, counts)
            self.add(added, float(values @ counts))


class Series(Counts):
    """Counts of a histogram, observed one at a time, in a call where prometheus_client's takes five."""

    def __init__(self, bounds: F64) -> None:
        super().__init__(bounds)
        self.listed: list[float] = bounds.tolist()
        self.counts: list[int] = [0] * (len(bounds) + 1)  # a number of an array takes longer to change

    def add(self, counts: I64, total: float) -> None:
        """Add values that are counted already; see `Counts.add`."""
        with self.lock:
            self.counts = [before + more for before, more in zip(self.counts, counts.tolist(), strict=True)]
            self.sum += total

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value, so many times."""
        place = bisect_left(self.listed, value)
        with self.lock:
            self.counts[place] += times
            self.sum += value * times


class LabelledHistogram(Collector):
    """Histogram of single values, for each value of its labels.

    Args:
        name: of the metric.
        help: of the metric.
        labels: names.
        bounds: rising upper bounds, an attribute, too.
    """

    def __init__(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name, self._help, self._labels = name, help, labels
        self.bounds: F64 = np.array(bounds, np.float64)
        self._series: dict[tuple[str, ...], Series] = {}

    def labels(self, *values: str) -> Series:
        """Series of a value for each label, which exists from here on."""
        return self._series.get(values) or self._begin(values)

    def _begin(self, values: tuple[str, ...]) -> Series:
        return self._series.setdefault(values, Series(self.bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Metrics in the form of prometheus_client."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for values, series in list(self._series.items()):
            series.add_to(family, values)
        yield family


def observe_each(values: Iterable[tuple[LabelledHistogram, tuple[str, ...], float]]) -> None:
    """Add a value to each of some series, given by histogram and labels, in a single call of Python."""
    for histogram, labels, value in values:
        series = histogram._series.get(labels) or histogram._begin(labels)
        place = bisect_left(series.listed, value)
        with series.lock:
            series.counts[place] += 1
            series.sum += value


class DelayHistogram(Collector):
    """Histogram of delays, observed many at a time.

    A version carries the event times of thousands of examples as counts per bin. Buckets are 2^(1/4)
    apart, so a quantile errs by at most 19 %.

    Args:
        name, help: of the metric.
    """

    bounds_s: npt.NDArray[np.float64] = np.round(0.05 * 2.0 ** (np.arange(69) / 4), 4)  # 50 ms … 1.8 h

    def __init__(self, name: str, help: str) -> None:
        self._name, self._help = name, help
        self._buckets = Buckets(self.bounds_s)

    def observe(self, delay_s: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> None:
        """Add counts[i] delays of delay_s[i] seconds each.

        Args:
            delay_s: f64[n], seconds.
            counts: i64[n].
        """
        self._buckets.observe(delay_s, counts)

    def quantile(self, q: float) -> float:
        """Upper bound in seconds of the bucket that holds quantile q; NaN without observations."""
        rising = self._buckets.rising()
        if rising[-1] == 0:
            return float("nan")
        at = int(np.searchsorted(rising, q * rising[-1], side="left"))
        return float(self.bounds_s[at]) if at < len(self.bounds_s) else float("inf")

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Metrics in the form of prometheus_client."""
        family = HistogramMetricFamily(self._name, self._help)
        self._buckets.add_to(family, [])
        yield family


class ProbabilityHistogram(Collector):
    """Histogram of probabilities, observed a reply at a time.

    Buckets are 2^(1/2) apart, from 2^-14 (0.006 %) to 1.

    Args:
        name, help, labels: of the metric.
    """

    bounds: npt.NDArray[np.float64] = np.round(2.0 ** (np.arange(-28, 1) / 2), 7)

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._parts: dict[tuple[str, ...], Buckets] = {}

    def add(self, values: tuple[str, ...], counts: I64, total: float) -> None:
        """Add the probabilities of a reply that are counted already; see `Counts.add`."""
        buckets = self._parts.get(values) or self.begin(*values)
        with buckets.lock:
            buckets.counts += counts
            buckets.sum += total

    def begin(self, *values: str) -> Buckets:
        """Buckets of a value for each label, which exist from here on."""
        return self._parts.get(values) or self._parts.setdefault(values, Buckets(self.bounds))

    def observe(self, probabilities: npt.NDArray[np.float64], *values: str) -> None:
        """Add probabilities f64[n] to the buckets of a value for each label."""
        self.begin(*values).observe(probabilities)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Metrics in the form of prometheus_client."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        for values, buckets in list(self._parts.items()):
            buckets.add_to(family, values)
        yield family
