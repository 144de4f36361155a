"""Training-serving skew: how far the features of served requests are from those that were learned.

    request ─ 1 in EVERY ─► features of the first candidate ─► fine bins of the request's period
                                                                     │ the period is whole
    version ─► distributions of its newest whole period ─────────────┴─► PSI

Both sides are of the same hours, so that no daily rhythm is a skew: a request counts in the period in which
its impression would be learned. Periods of which this process has not seen the begin are not compared.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from livectr.ingest.drift.counts import PERIOD, Counts, codes_of
from livectr.ingest.drift.learned import Learned
from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.serving import metrics

I64 = npt.NDArray[np.int64]

EVERY = 512
"""One request in so many is counted, and answered by Python: behind the native front a millisecond longer."""
MOST_PERIODS = 8
"""Periods between the version's and a request's from which it is not counted."""
_WAITING = 1 << 16
"""Codes that wait before they are counted."""


class FeatureSkew:
    """Distributions of the features of a ranker's requests. Thread-safe."""

    def __init__(self, pipeline: Pipeline) -> None:
        plan = pipeline.plan
        self._names, self._fields = (*plan.sparse, *plan.dense_names), len(plan.sparse)
        self._wait_ms = pipeline.log.leaves_ms
        self._lock = threading.Lock()
        self._waiting: list[I64] = []
        self._codes = 0
        self._counts = Counts.none()
        self._first: int | None = None
        self._newest = 0
        self._shown: tuple[int, int] | None = None
        self._period_ms = 0

    def add(self, features: SharedFeatures, row: int, now_ms: int, learned: Learned) -> None:
        """Count a request, and bring the gauges up to date when a period is whole.

        Args:
            features: of its candidates.
            row: number of the candidate that counts.
            now_ms: time of the request.
            learned: distributions of the version that has answered.
        """
        period = (now_ms + self._wait_ms) // learned.period_ms
        if abs(period - learned.period) >= MOST_PERIODS:
            return
        codes = codes_of(_one(features, row), np.array([period]))
        with self._lock:
            if self._period_ms != learned.period_ms:
                self._period_ms, self._first, self._newest = learned.period_ms, None, 0
                self._waiting, self._codes, self._counts = [], 0, Counts.none()
            self._first = period if self._first is None else self._first
            self._newest = max(self._newest, period)
            self._waiting.append(codes)
            self._codes += len(codes)
            if self._codes > _WAITING:
                self._count(learned)
            if self._shown != (learned.period, self._newest):
                self._shown = learned.period, self._newest
                self._count(learned)
                self._show(learned)

    def _count(self, learned: Learned) -> None:
        """Count the codes that wait, and drop periods that are far from the version's."""
        if self._waiting:
            both = [self._counts, Counts.of(np.concatenate(self._waiting))]
            self._waiting, self._codes = [], 0
            ends = learned.period - MOST_PERIODS, learned.period + MOST_PERIODS
            self._counts = Counts.total(both).between(ends[0] * PERIOD, ends[1] * PERIOD)

    def _show(self, learned: Learned) -> None:
        found: dict[int, float] = {}
        if self._first is not None and self._first < learned.period < self._newest:
            served = self._counts.of_period(learned.period)
            found = learned.psi(served, self._fields, len(self._names))
        for number, name in enumerate(self._names):
            metrics.FEATURE_SKEW.labels(name).set(found.get(number, float("nan")))


def _one(features: SharedFeatures, row: int) -> Features:
    """Features of a row, in the order of the plan."""
    own = features.own.take([row])
    order = np.argsort([*features.shared_fields, *features.own_fields]).tolist()
    return features.shared.merge(own, order, range(own.dense.shape[1]))
