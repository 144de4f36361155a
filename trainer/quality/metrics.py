"""Quality of predictions: AUC, GAUC, log loss and calibration, exact and vectorised.

All functions take logits (not probabilities), so that confident predictions do not become ties by rounding. A
measure without a value (one class only, no example) is NaN.

    AUC          P(logit⁺ > logit⁻) + ½ P(logit⁺ = logit⁻), from rank sums (Hanley & McNeil 1982)
    GAUC         Σ_u n_u AUC_u / Σ_u n_u over users with both classes, n_u impressions (DICM §7.1, eq. 8)
    log loss     mean of log(1 + e^z) − y z, |z| ≤ LOGIT_LIMIT
    calibration  Σ p / Σ y: 1 is calibrated, 2 promises twice the clicks
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]
Labels = Floats | NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LOGIT_LIMIT = 1e3
"""Most that a logit counts for in a log loss, either way."""
LAST = 0.2
"""Share of a run at its end that is reported apart, as the model has learned enough by then."""


def _stable_order(group: Ints) -> Ints:
    """Stable radix sort of ids int64[n], 16 bits at a time of the bits that differ; returns the order."""
    rest = (group - group.min()).view(np.uint64)  # exact: a difference that wraps is right without a sign
    order = np.arange(len(group))
    for shift in range(0, int(rest.max()).bit_length(), 16):
        digit = (rest >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order


def _areas(
    group: Ints | None, logit: Floats, positive: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], Ints]:
    """Compute AUC (NaN for one class) and size of every group, in the order of the group ids.

    Args:
        group: int64[n], non-decreasing; None: a single group.
        logit: float[n], non-decreasing within a group.
        positive: bool[n].
    """
    if len(logit) == 0:
        return np.empty(0), np.empty(0, np.int64)
    new_group = np.zeros(len(logit), np.bool_) if group is None else np.r_[True, group[1:] != group[:-1]]
    new_group[0] = True
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


def _auc_and_gauc(user: Ints | None, logit: Floats, label: Floats) -> tuple[float, float, int]:
    """Compute (AUC, GAUC, users left out) with one sort of the logits; without users AUC alone."""
    if len(logit) == 0:
        return float("nan"), float("nan"), 0
    order = np.argsort(logit)
    logit, positive = logit[order], label[order] > 0.5
    overall = float(_areas(None, logit, positive)[0][0])
    if user is None:
        return overall, float("nan"), 0
    user = user[order]
    order = _stable_order(user)
    areas, size = _areas(user[order], logit[order], positive[order])
    mixed = ~np.isnan(areas)
    by_user = float(np.average(areas[mixed], weights=size[mixed])) if mixed.any() else float("nan")
    return overall, by_user, int((~mixed).sum())


def auc(logit: Floats, label: Floats) -> float:
    """Area under the ROC curve of logits f32[n] and labels f32[n] in {0, 1}; ties count half."""
    return _auc_and_gauc(None, logit, label)[0]


def gauc(user: Ints, logit: Floats, label: Floats) -> tuple[float, int]:
    """AUC by user, weighted by impressions, and the number of users left out as they have one class only."""
    return _auc_and_gauc(user, logit, label)[1:]


def gauc_error(user: Ints, logit: Floats, label: Floats, minus: Floats | None = None) -> float:
    """Standard error over users of a GAUC, or of the difference of two GAUCs.

    √(Σ_u n_u² (d_u − d)²) / Σ_u n_u, with d_u the user's AUC (or difference of AUCs) and d their mean by n_u:
    the linearised variance of a ratio of sums over users that are drawn independently.

    Args:
        user: int64[n].
        logit: float[n].
        label: float[n] in {0, 1}.
        minus: float[n], logits whose GAUC is subtracted.

    Returns:
        The standard error; NaN for fewer than two users.
    """
    if len(logit) == 0:
        return float("nan")
    each, size = _user_areas(user, logit, label)
    if minus is not None:
        each = each - _user_areas(user, minus, label)[0]
    each, size = each[~np.isnan(each)], size[~np.isnan(each)]
    if len(each) < 2:
        return float("nan")
    apart = size * (each - np.average(each, weights=size))
    return float(np.sqrt(np.sum(apart**2)) / size.sum())


def _user_areas(user: Ints, logit: Floats, label: Floats) -> tuple[NDArray[np.float64], Ints]:
    """AUC (NaN of one class) and size of every user, in the order of their ids."""
    order = np.argsort(logit)
    order = order[_stable_order(user[order])]
    return _areas(user[order], logit[order], label[order] > 0.5)


def bounded(logit: Floats) -> NDArray[np.float64]:
    """Logits f64[n] within ±LOGIT_LIMIT, NaN as 0.

    One extreme example costs 1000 nats at most, so a mean over millions still says something.
    """
    return np.clip(np.where(np.isnan(logit), 0.0, logit).astype(np.float64), -LOGIT_LIMIT, LOGIT_LIMIT)


def logloss(logit: Floats, label: Floats) -> float:
    """Mean cross entropy of bounded logits in nats."""
    return float(np.mean(example_losses(bounded(logit), label))) if len(logit) else float("nan")


def example_losses(logit: Floats, label: Labels) -> NDArray[np.float64]:
    """Cross entropy f64[n] of each example in nats."""
    z = logit.astype(np.float64)
    losses: NDArray[np.float64] = np.logaddexp(0.0, z) - label * z
    return losses


def calibration(logit: Floats, label: Floats) -> float:
    """Predicted clicks over observed clicks."""
    clicks = float(label.sum(dtype=np.float64))
    return float(np.sum(_probability(logit))) / clicks if clicks else float("nan")


def _probability(logit: Floats) -> NDArray[np.float64]:
    """Logistic function, f64[n]; it does not overflow."""
    return 0.5 * (1 + np.tanh(0.5 * logit.astype(np.float64)))


@dataclass(frozen=True)
class Quality:
    """Measures over a set of examples; cold_…: over examples of cold items (trainer.quality.seen)."""

    examples: int
    auc: float
    gauc: float
    skipped_users: int
    logloss: float
    calibration: float
    cold_examples: int
    cold_auc: float
    cold_gauc: float
    cold_users_left_out: int

    def as_dict(self) -> dict[str, float | None]:
        """Fields as JSON values: NaN, which JSON lacks, becomes None."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def quality(user: Ints, logit: Floats, label: Floats, cold: Bools) -> Quality:
    """Compute every measure.

    Args:
        user: int64[n].
        logit: float[n].
        label: float[n] in {0, 1}.
        cold: bool[n], the item was cold.
    """
    return Quality(
        len(logit),
        *_auc_and_gauc(user, logit, label),
        logloss(logit, label),
        calibration(logit, label),
        int(np.count_nonzero(cold)),
        *_auc_and_gauc(user[cold], logit[cold], label[cold]),
    )


def run_report(
    user: Ints, logit: Floats, label: Floats, cold: Bools, *, last: float = LAST
) -> dict[str, Quality]:
    """Quality of a run in training order, over "all" of it and over its "last" share."""
    end = slice(int(len(logit) * (1 - last)), None)
    return {
        "all": quality(user, logit, label, cold),
        "last": quality(user[end], logit[end], label[end], cold[end]),
    }


@dataclass(frozen=True)
class ClickRates:
    """Click rates over a set of examples; a rate of none is NaN.

    Args:
        observed: clicked share.
        predicted: role → mean predicted probability.
    """

    examples: int
    clicks: int
    observed: float
    predicted: Mapping[str, float]


_LOGIT = "logit."
"""Beginning of the name of a model's logits in the state of a window."""


class SlidingWindow:
    """Ring buffer of the examples in the newest `window_ms` of event time; memory is allocated once.

    Args:
        window_ms: event time of the window.
        roles: models whose logits are added.
        capacity: most examples; if more fall into the window, the last added are kept.
    """

    def __init__(self, window_ms: int, roles: Iterable[str], capacity: int = 200_000) -> None:
        self.window_ms = window_ms
        self.roles = tuple(roles)
        self._rows: dict[str, NDArray[Any]] = {
            "time_ms": np.zeros(capacity, np.int64),
            "user": np.zeros(capacity, np.int64),
            "label": np.zeros(capacity, np.float32),
            "cold": np.zeros(capacity, np.bool_),
        }
        self._logits = {role: np.zeros(capacity, np.float32) for role in self.roles}
        self._capacity = capacity
        self._added = 0
        self._newest_ms = int(np.iinfo(np.int64).min)

    @property
    def added(self) -> int:
        """Examples that were added, by earlier processes too."""
        return self._added

    def state(self, most: int) -> dict[str, NDArray[Any]]:
        """State for a checkpoint: the `most` examples that were added last."""
        n = min(most, self._added, self._capacity)
        at = np.arange(self._added - n, self._added) % self._capacity
        columns = {**self._rows, **{_LOGIT + role: ring for role, ring in self._logits.items()}}
        numbers = np.array([self._added, self._newest_ms], np.int64)
        held = {name: ring[at] for name, ring in columns.items()}
        return {"numbers": numbers, **held, "cold": held["cold"].astype(np.uint8)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a `state`; one that lacks a model is left out."""
        if any(_LOGIT + role not in state for role in self.roles):
            return
        self._added, self._newest_ms = map(int, state["numbers"])
        at = np.arange(self._added - len(state["user"]), self._added) % self._capacity
        # Places of the ring that are not restored lie before every window.
        self._rows["time_ms"][:] = np.iinfo(np.int64).min
        for name, ring in self._rows.items():
            ring[at] = state[name]
        for role, ring in self._logits.items():
            ring[at] = state[_LOGIT + role]

    def add(
        self, time_ms: Ints, user: Ints, logits: Mapping[str, Floats], label: Labels, cold: Bools
    ) -> None:
        """Add the B examples of a batch; event times need not be in order."""
        if len(time_ms) == 0:
            return
        keep = slice(max(0, len(time_ms) - self._capacity), None)
        n = len(time_ms[keep])
        at = (self._added + np.arange(n)) % self._capacity
        columns: dict[str, NDArray[Any]] = {"time_ms": time_ms, "user": user, "label": label, "cold": cold}
        for name, ring in self._rows.items():
            ring[at] = columns[name][keep]
        for role, ring in self._logits.items():
            ring[at] = logits[role][keep]
        self._added += n
        self._newest_ms = max(self._newest_ms, int(time_ms.max()))

    def rates(self) -> ClickRates:
        """Observed and predicted click rates over the window."""
        held = self._held()
        n, clicks = len(held), int(self._rows["label"][held].sum(dtype=np.float64))
        predicted = {
            role: float(_probability(logit[held]).mean()) if n else float("nan")
            for role, logit in self._logits.items()
        }
        return ClickRates(n, clicks, clicks / n if n else float("nan"), predicted)

    def _held(self) -> Ints:
        """Places of the window's examples in the ring."""
        return np.flatnonzero(self._rows["time_ms"][: self._added] > self._newest_ms - self.window_ms)

    def quality(self) -> dict[str, Quality]:
        """Role → measures over the window."""
        held = self._held()
        user, label, cold = (self._rows[name][held] for name in ("user", "label", "cold"))
        return {role: quality(user, logit[held], label, cold) for role, logit in self._logits.items()}
