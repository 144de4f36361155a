"""Drift of features: how far a feature of the newest day is from that of the days before.

    own examples ─ 1 in EVERY ─► codes ─► waiting ─ collective ─► 4 periods of the window ─► reference
                 of the extract thread    this rank               rank 0

A period is a quarter of the window. One that leaves the window goes into the reference, whose counts are
multiplied by 1 − 1/MEAN_PERIODS before: the mean age of its examples is 7 windows, a week where the window is
a day. So the reference is one distribution, whatever time it is of. Periods without examples do not count.

An example counts in the period of its place in the global sequence, which never falls from batch to batch. So
no example comes after its period was closed, and the counts are a function of the log: the same for every
number of ranks, and after a resumption. A hash of an example's key in the label join and of its time decides
whether it is counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from livectr.ingest.common_features import AnyFeatures, Common, CommonFeatures
from livectr.ingest.drift.counts import MOST_FEATURES, PERIOD, Counts, codes_of
from livectr.ingest.drift.learned import Learned
from livectr.ingest.drift.psi import psi
from livectr.ingest.extract.device_features import DeviceFeatures
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.plan.features import Features
from livectr.trainer.comm.control import Control
from livectr.trainer.drift.telemetry import FEATURE_DRIFT
from livectr.trainer.part import Arrays, Part
from livectr.trainer.setup import Setup

I64 = npt.NDArray[np.int64]

EVERY = 64
"""One in so many examples is counted."""
PERIODS = 4
"""Periods of the window: hours of the day would be drift if it began with each day."""
MEAN_PERIODS = 7 * PERIODS
LEAST_WEIGHT = 0.01
"""Weight of a bin in the reference below which it is dropped."""
WAITING = 1 << 18
"""Codes that wait before they are counted, 2 MiB."""
SHOWN_EVERY_S = 30.0

_MIX = np.uint64(0x9E3779B97F4A7C15)


class FeatureDrift(Part):
    """Distributions of the features of a run's examples. Rank 0 holds those of all ranks.

    Args:
        fields, dense: names of the sparse fields, and of the dense numbers.
        common: features that examples of a user share.
        window_ms: newest event time that is compared with the time before.
        control: of this rank.
    """

    kind: ClassVar[str] = "drift"

    def __init__(
        self,
        fields: Sequence[str],
        dense: Sequence[str],
        common: Common,
        window_ms: int,
        control: Control,
    ) -> None:
        self._fields, self._names = len(fields), (*fields, *dense)
        self._common, self._control = common, control
        self._period_ms = window_ms // PERIODS
        self._waiting: list[I64] = []
        self._codes = 0
        self._counted: list[Counts] = []
        self._window: dict[int, Counts] = {}
        self._reference = Counts(np.empty(0, np.int64), np.empty(0))
        self._next_shown = time.monotonic()
        self._learned: Learned | None = None

    @staticmethod
    def of(setup: Setup) -> FeatureDrift | None:
        """Drift of a run; None: it is turned off, the log has no times, or features are too many."""
        plan, window_ms = setup.pipeline.plan, int(setup.options.drift_window_s * 1000)
        fields, dense = tuple(plan.sparse), plan.dense_names
        timed = setup.pipeline.log.impressions.time is not None
        if not timed or not window_ms or len(fields) + len(dense) > MOST_FEATURES:
            return None
        return FeatureDrift(fields, dense, Common.of(setup.pipeline), window_ms, setup.control)

    def codes(self, own: Examples, features: AnyFeatures) -> I64:
        """Codes of the examples of b rows that are counted, int64[m]. Thread-safe.

        Features on a device stay there: none of them is counted, since each batch would wait for a copy.

        Args:
            own: rows; those that come again for a label are no examples.
            features: of the rows.
        """
        parts = (features.common, features.own) if isinstance(features, CommonFeatures) else (features,)
        if any(isinstance(part, DeviceFeatures) for part in parts):
            return np.empty(0, np.int64)
        with np.errstate(over="ignore"):
            words = own.instance.view(np.uint64) + own.time_ms.view(np.uint64) * _MIX
            words = (words ^ (words >> np.uint64(32))) * _MIX
        chosen = (words >> np.uint64(32)) % np.uint64(EVERY) == 0
        rows = np.flatnonzero(chosen & ~own.late & ~own.final & ~features.failed)
        if not len(rows):
            return np.empty(0, np.int64)
        some = features.take(rows)
        plain: Features = some.plain(self._common) if isinstance(some, CommonFeatures) else some
        return codes_of(plain, own.order[rows] // self._period_ms)

    def add(self, codes: I64) -> None:
        """Count the codes int64[m] of this rank's examples of the next batch."""
        if not len(codes):
            return
        self._waiting.append(codes)
        self._codes += len(codes)
        if self._codes > WAITING:
            self._count()

    def gather(self) -> None:
        """Bring the counts of all ranks to rank 0, and its gauges up to date. Collective."""
        self._count()
        own = Counts.total(self._counted)
        self._counted.clear()
        if self._control.world > 1:
            pairs = np.stack([own.codes, own.counts], axis=1)
            lengths = self._control.gather(np.array([len(own)]))[:, 0]
            shares = self._control.gather_ragged(pairs, lengths)
            own = Counts.total([Counts(share[:, 0], share[:, 1]) for share in shares])
        if self._control.rank != 0:
            return
        for period in np.unique(own.codes // PERIOD).tolist():
            held = self._window.get(period, Counts.none())
            self._window[period] = Counts.total([held, own.of_period(period)])
        self._close()
        if time.monotonic() >= self._next_shown:
            started = time.monotonic()
            self._show(self.psi())
            took_s = time.monotonic() - started
            self._next_shown = time.monotonic() + max(SHOWN_EVERY_S, 1000 * took_s)

    def psi(self) -> dict[str, float]:
        """PSI of each feature of which there are enough examples, on rank 0."""
        newest, reference = Counts.total(list(self._window.values())), self._reference
        rows = reference.rows, newest.rows
        found = {}
        for number, name in enumerate(self._names):
            sides = reference.of_feature(1 + number), newest.of_feature(1 + number)
            value = psi(*sides, rows, dense=number >= self._fields)
            if value is not None:
                found[name] = value
        return found

    def learned(self) -> Learned | None:
        """Distributions of the newest whole period, as of the last `gather`, on rank 0; None: there is none.

        The first period of a run is none: it began before the run.
        """
        first = len(self._reference) == 0 and min(self._window, default=0)
        whole = max(self._window, default=0)
        period = max((each for each in self._window if first < each < whole), default=None)
        if period is None:
            return None
        if self._learned is None or self._learned.period != period:
            counts, features = self._window[period], len(self._names)
            self._learned = Learned.of(period, self._period_ms, counts, self._fields, features)
        return self._learned

    def state(self) -> Arrays:
        """Counts of all ranks as of the last `gather`, on rank 0, and what they are of."""
        if self._control.rank != 0:
            return {}
        parts = [Counts(c.codes + p * PERIOD, c.counts) for p, c in sorted(self._window.items())]
        window = Counts.total(parts)
        return {
            "features": self._described,
            "codes": window.codes,
            "counts": window.counts,
            "reference_codes": self._reference.codes,
            "reference_counts": self._reference.counts,
        }

    def load(self, state: Arrays) -> None:
        """Resume from a `state`; one of other features, or of another window, is left."""
        if self._control.rank != 0 or not np.array_equal(state["features"], self._described):
            return
        window = Counts(state["codes"].copy(), state["counts"].copy())
        periods = np.unique(window.codes // PERIOD).tolist()
        self._window = {period: window.of_period(period) for period in periods}
        self._reference = Counts(state["reference_codes"].copy(), state["reference_counts"].copy())

    def report(self) -> Mapping[str, Any]:
        """PSI of each feature of which there are enough examples. Collective."""
        self.gather()
        found = self.psi()
        if self._control.rank == 0:
            self._show(found)
        return {"drift": {name: round(value, 4) for name, value in found.items()}}

    def _show(self, found: Mapping[str, float]) -> None:
        for name in self._names:
            FEATURE_DRIFT.labels(name).set(found.get(name, float("nan")))

    def _count(self) -> None:
        """Count the codes that wait."""
        if self._waiting:
            counted = Counts.of(np.concatenate(self._waiting))
            self._waiting.clear()
            self._codes = 0
            self._counted = [Counts.total([*self._counted, counted])]

    def _close(self) -> None:
        """Move periods that have left the window into the reference, the oldest first."""
        newest = max(self._window, default=0)
        for period in sorted(self._window):
            if period > newest - PERIODS:
                break
            kept = Counts(self._reference.codes, self._reference.counts * (1 - 1 / MEAN_PERIODS))
            both = Counts.total([kept, self._window.pop(period)])
            stays = both.counts >= LEAST_WEIGHT
            self._reference = Counts(both.codes[stays], both.counts[stays].astype(np.float64))

    @property
    def _described(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        text = "\n".join((str(self._period_ms), str(self._fields), *self._names))
        return np.frombuffer(text.encode(), np.uint8)
