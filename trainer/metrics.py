"""How good the predictions are: AUC, GAUC, log loss and calibration, exact and vectorised.

All take logits (not probabilities), so that confident predictions do not become ties by rounding. A measure
that has no value (one class only, no example) is NaN.

    AUC          P(logit⁺ > logit⁻) + ½ P(logit⁺ = logit⁻), from rank sums (Hanley & McNeil 1982)
    GAUC         Σ_u n_u AUC_u / Σ_u n_u over users with both classes, n_u impressions (DICM eq. 8)
    log loss     mean of log(1 + e^z) − y z
    calibration  Σ p / Σ y: 1 is calibrated, 2 promises twice the clicks
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]
Ints = NDArray[np.int64]


def _group_auc(group: Ints, logit: Floats, label: Floats) -> tuple[NDArray[np.float64], Ints]:
    """AUC and size of every group, in the order of the group ids; NaN for a group of one class."""
    if len(logit) == 0:
        return np.empty(0), np.empty(0, np.int64)
    order = np.lexsort((logit, group))
    group, logit, positive = group[order], logit[order], (label[order] > 0.5)
    new_group = np.r_[True, group[1:] != group[:-1]]
    new_tie = new_group | np.r_[True, logit[1:] != logit[:-1]]
    group_start, tie_start = np.flatnonzero(new_group), np.flatnonzero(new_tie)
    size = np.diff(np.r_[group_start, len(logit)])
    # mid-rank of each run of ties, counted from 1 within its group
    first = tie_start - group_start[np.cumsum(new_group)[tie_start] - 1]
    mid_rank = first + (np.diff(np.r_[tie_start, len(logit)]) + 1) / 2
    rank = mid_rank[np.cumsum(new_tie) - 1]
    positives = np.add.reduceat(positive.astype(np.int64), group_start)
    rank_sum = np.add.reduceat(np.where(positive, rank, 0.0), group_start)
    pairs = positives * (size - positives)
    wins = rank_sum - positives * (positives + 1) / 2
    return np.where(pairs > 0, wins / np.maximum(pairs, 1), np.nan), size


def auc(logit: Floats, label: Floats) -> float:
    """Area under the ROC curve of logits f32[n] and labels f32[n] in {0, 1}; ties count half."""
    areas, _ = _group_auc(np.zeros(len(logit), np.int64), logit, label)
    return float(areas[0]) if len(areas) else float("nan")


def gauc(user: Ints, logit: Floats, label: Floats) -> tuple[float, int]:
    """(AUC by user, weighted by impressions; number of users left out because they have one class only)."""
    areas, size = _group_auc(user, logit, label)
    mixed = ~np.isnan(areas)
    if not mixed.any():
        return float("nan"), len(areas)
    return float(np.average(areas[mixed], weights=size[mixed])), int((~mixed).sum())


def logloss(logit: Floats, label: Floats) -> float:
    """Mean cross entropy in nats."""
    z = logit.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, z) - label * z)) if len(z) else float("nan")


def calibration(logit: Floats, label: Floats) -> float:
    """Predicted clicks over observed clicks."""
    clicks = float(label.sum(dtype=np.float64))
    return (
        float(np.sum(0.5 * (1 + np.tanh(0.5 * logit.astype(np.float64))))) / clicks
        if clicks
        else float("nan")
    )


@dataclass(frozen=True)
class Quality:
    """The measures over a set of examples."""

    examples: int
    auc: float
    gauc: float
    users_left_out: int
    logloss: float
    calibration: float

    def as_dict(self) -> dict[str, float | None]:
        """JSON-able: NaN, which JSON lacks, becomes None."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def quality(user: Ints, logit: Floats, label: Floats) -> Quality:
    """Every measure of logits f32[n], labels f32[n] and user ids i64[n]."""
    by_user, left_out = gauc(user, logit, label)
    return Quality(
        len(logit), auc(logit, label), by_user, left_out, logloss(logit, label), calibration(logit, label)
    )


def run_report(user: Ints, logit: Floats, label: Floats, *, last: float = 0.2) -> dict[str, Quality]:
    """Test-then-train quality of a run in training order: over "all" of it and over its "last" share."""
    start = int(len(logit) * (1 - last))
    return {
        "all": quality(user, logit, label),
        "last": quality(user[start:], logit[start:], label[start:]),
    }


class SlidingWindow:
    """The newest `window_ms` of event time, at most `capacity` examples: memory is bounded, allocated once.

    When more than `capacity` examples fall into the window, the last ones added are kept.
    """

    def __init__(self, window_ms: int, capacity: int = 200_000) -> None:
        self.window_ms = window_ms
        self._ring = np.zeros(
            capacity,
            [("time_ms", np.int64), ("user", np.int64), ("logit", np.float32), ("label", np.float32)],
        )
        self._added = 0
        self._newest_ms = np.iinfo(np.int64).min

    def add(self, time_ms: Ints, user: Ints, logit: Floats, label: Floats) -> None:
        """Adds examples of one batch; event times need not be in order."""
        if len(time_ms) == 0:
            return
        capacity = len(self._ring)
        keep = slice(max(0, len(time_ms) - capacity), None)
        n = len(time_ms[keep])
        at = (self._added + np.arange(n)) % capacity
        for name, column in (("time_ms", time_ms), ("user", user), ("logit", logit), ("label", label)):
            self._ring[name][at] = column[keep]
        self._added += n
        self._newest_ms = max(self._newest_ms, int(time_ms.max()))

    def quality(self) -> Quality:
        """The measures over what is in the window."""
        held = self._ring[: self._added]
        held = held[held["time_ms"] > self._newest_ms - self.window_ms]
        return quality(held["user"], held["logit"], held["label"])
