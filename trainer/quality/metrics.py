"""Quality of predictions: AUC, GAUC, log loss and calibration, exact and vectorised.

All functions take logits (not probabilities), so that confident predictions do not become ties by rounding. A
measure without a value (one class only, no example) is NaN.

    AUC          P(logit⁺ > logit⁻) + ½ P(logit⁺ = logit⁻), from rank sums (Hanley & McNeil 1982)
    GAUC         Σ_u n_u AUC_u / Σ_u n_u over users with both classes, n_u impressions (DICM §7.1, eq. 8)
    log loss     mean of log(1 + e^z) − y z, |z| ≤ LOGIT_LIMIT
    calibration  Σ p / Σ y: 1 is calibrated, 2 promises twice the clicks

Where examples have weights, every sum and count is of weights: a pair of AUC counts the product of its two,
and n_u is the weight of a user's impressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
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


def _weighted_areas(
    group: Ints | None, logit: Floats, positive: NDArray[np.bool_], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`_areas` of examples with weights f64[n]: the size of a group is its weight."""
    new_group = np.zeros(len(logit), np.bool_) if group is None else np.r_[True, group[1:] != group[:-1]]
    new_group[0] = True
    new_tie = new_group | np.r_[True, logit[1:] != logit[:-1]]
    tie_start, group_start = np.flatnonzero(new_tie), np.flatnonzero(new_group)
    clicks = np.add.reduceat(np.where(positive, weight, 0.0), tie_start)
    others = np.add.reduceat(np.where(positive, 0.0, weight), tie_start)
    first = np.flatnonzero(new_group[tie_start])  # tie of each group
    below = np.cumsum(others) - others
    below -= np.repeat(below[first], np.diff(np.r_[first, len(tie_start)]))
    wins = np.add.reduceat(clicks * (below + 0.5 * others), first)
    pairs = np.add.reduceat(clicks, first) * np.add.reduceat(others, first)
    size = np.add.reduceat(weight, group_start)
    return np.where(pairs > 0, wins / np.where(pairs > 0, pairs, 1), np.nan), size


def _areas_of(
    group: Ints | None, logit: Floats, positive: NDArray[np.bool_], weight: Floats | None
) -> tuple[NDArray[np.float64], Ints | NDArray[np.float64]]:
    """Areas and sizes of sorted examples, with their weights where they have some."""
    if weight is None or not len(logit):
        return _areas(group, logit, positive)
    return _weighted_areas(group, logit, positive, weight.astype(np.float64))


def _auc_and_gauc(
    user: Ints | None, logit: Floats, label: Floats, weight: Floats | None = None
) -> tuple[float, float, int]:
    """Compute (AUC, GAUC, users left out) with one sort of the logits; without users AUC alone."""
    if len(logit) == 0:
        return float("nan"), float("nan"), 0
    order = np.argsort(logit)
    logit, positive, weight = logit[order], label[order] > 0.5, _taken(weight, order)
    overall = float(_areas_of(None, logit, positive, weight)[0][0])
    if user is None:
        return overall, float("nan"), 0
    user = user[order]
    order = _stable_order(user)
    areas, size = _areas_of(user[order], logit[order], positive[order], _taken(weight, order))
    mixed = ~np.isnan(areas)
    by_user = float(np.average(areas[mixed], weights=size[mixed])) if mixed.any() else float("nan")
    return overall, by_user, int((~mixed).sum())


def _taken(weight: Floats | None, at: Ints | Bools) -> Floats | None:
    return None if weight is None else weight[at]


def auc(logit: Floats, label: Floats, weight: Floats | None = None) -> float:
    """Area under the ROC curve of logits f32[n] and labels f32[n] in {0, 1}; ties count half."""
    return _auc_and_gauc(None, logit, label, weight)[0]


def gauc(user: Ints, logit: Floats, label: Floats, weight: Floats | None = None) -> tuple[float, int]:
    """AUC by user, weighted by impressions, and the number of users left out as they have one class only."""
    return _auc_and_gauc(user, logit, label, weight)[1:]


def gauc_error(
    user: Ints,
    logit: Floats,
    label: Floats,
    minus: Floats | None = None,
    weight: Floats | None = None,
) -> float:
    """Standard error over users of a GAUC, or of the difference of two GAUCs.

    √(Σ_u n_u² (d_u − d)²) / Σ_u n_u, with d_u the user's AUC (or difference of AUCs) and d their mean by n_u:
    the linearised variance of a ratio of sums over users that are drawn independently.

    Args:
        user: int64[n].
        logit: float[n].
        label: float[n] in {0, 1}.
        minus: float[n], logits whose GAUC is subtracted.
        weight: float[n]; None: 1.

    Returns:
        The standard error; NaN for fewer than two users.
    """
    if len(logit) == 0:
        return float("nan")
    each, size = _user_areas(user, logit, label, weight)
    if minus is not None:
        each = each - _user_areas(user, minus, label, weight)[0]
    each, size = each[~np.isnan(each)], size[~np.isnan(each)]
    if len(each) < 2:
        return float("nan")
    apart = size * (each - np.average(each, weights=size))
    return float(np.sqrt(np.sum(apart**2)) / size.sum())


def _user_areas(
    user: Ints, logit: Floats, label: Floats, weight: Floats | None
) -> tuple[NDArray[np.float64], Ints | NDArray[np.float64]]:
    """AUC (NaN of one class) and size of every user, in the order of their ids."""
    order = np.argsort(logit)
    order = order[_stable_order(user[order])]
    return _areas_of(user[order], logit[order], label[order] > 0.5, _taken(weight, order))


def bounded(logit: Floats) -> NDArray[np.float64]:
    """Logits f64[n] within ±LOGIT_LIMIT, NaN as 0.

    One extreme example costs 1000 nats at most, so a mean over millions still says something.
    """
    return np.clip(np.where(np.isnan(logit), 0.0, logit).astype(np.float64), -LOGIT_LIMIT, LOGIT_LIMIT)


def logloss(logit: Floats, label: Floats, weight: Floats | None = None) -> float:
    """Mean cross entropy of bounded logits in nats."""
    losses = example_losses(bounded(logit), label)
    if weight is not None:
        return _share(float(np.sum(losses * weight)), float(weight.sum(dtype=np.float64)))
    return float(np.mean(losses)) if len(logit) else float("nan")


def example_losses(logit: Floats, label: Labels) -> NDArray[np.float64]:
    """Cross entropy f64[n] of each example in nats."""
    z = logit.astype(np.float64)
    losses: NDArray[np.float64] = np.logaddexp(0.0, z) - label * z
    return losses


def calibration(logit: Floats, label: Floats, weight: Floats | None = None) -> float:
    """Predicted clicks over observed clicks."""
    predicted = _probability(logit)
    if weight is not None:
        predicted, label = predicted * weight, label * weight.astype(np.float64)
    return _share(float(np.sum(predicted)), float(label.sum(dtype=np.float64)))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


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


def quality(user: Ints, logit: Floats, label: Floats, cold: Bools, weight: Floats | None = None) -> Quality:
    """Compute every measure.

    Args:
        user: int64[n].
        logit: float[n].
        label: float[n] in {0, 1}.
        cold: bool[n], the item was cold.
        weight: float[n], at least 0; None: 1.
    """
    return Quality(
        len(logit),
        *_auc_and_gauc(user, logit, label, weight),
        logloss(logit, label, weight),
        calibration(logit, label, weight),
        int(np.count_nonzero(cold)),
        *_auc_and_gauc(user[cold], logit[cold], label[cold], _taken(weight, cold)),
    )


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
_WEIGHT, _LABEL = "weight", "label."


class SlidingWindow:
    """Ring buffer of the examples in the newest `window_ms` of event time; memory is allocated once.

    Args:
        window_ms: event time of the window.
        roles: models whose logits are added.
        capacity: most examples; if more fall into the window, the last added are kept.
        weighted: examples have weights.
        targets: roles with labels of their own.
    """

    def __init__(
        self,
        window_ms: int,
        roles: Iterable[str],
        capacity: int = 200_000,
        *,
        weighted: bool = False,
        targets: Iterable[str] = (),
    ) -> None:
        self.window_ms = window_ms
        self.roles = tuple(roles)
        self._rows: dict[str, NDArray[Any]] = {
            "time_ms": np.zeros(capacity, np.int64),
            "user": np.zeros(capacity, np.int64),
            "label": np.zeros(capacity, np.float32),
            "cold": np.zeros(capacity, np.bool_),
            **({_WEIGHT: np.zeros(capacity, np.float32)} if weighted else {}),
            **{_LABEL + role: np.zeros(capacity, np.float32) for role in targets},
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
        own = [name for name in self._rows if name.startswith(_LABEL)]
        if any(name not in state for name in (*own, *(_LOGIT + role for role in self.roles))):
            return
        self._added, self._newest_ms = map(int, state["numbers"])
        at = np.arange(self._added - len(state["user"]), self._added) % self._capacity
        # Places of the ring that are not restored lie before every window.
        self._rows["time_ms"][:] = np.iinfo(np.int64).min
        for name, ring in self._rows.items():
            ring[at] = 1 if name == _WEIGHT and name not in state else state[name]
        for role, ring in self._logits.items():
            ring[at] = state[_LOGIT + role]

    def add(
        self,
        time_ms: Ints,
        user: Ints,
        logits: Mapping[str, Floats],
        label: Labels,
        cold: Bools,
        weight: Floats | None = None,
        targets: Mapping[str, Labels] = MappingProxyType({}),
    ) -> None:
        """Add the B examples of a batch; event times need not be in order.

        A label that is NaN is not known with its row.
        """
        if len(time_ms) == 0:
            return
        keep = slice(max(0, len(time_ms) - self._capacity), None)
        n = len(time_ms[keep])
        at = (self._added + np.arange(n)) % self._capacity
        columns: dict[str, NDArray[Any]] = {"time_ms": time_ms, "user": user, "label": label, "cold": cold}
        columns |= {} if weight is None else {_WEIGHT: weight}
        columns |= {_LABEL + role: came for role, came in targets.items()}
        for name, ring in self._rows.items():
            ring[at] = columns[name][keep]
        for role, ring in self._logits.items():
            ring[at] = logits[role][keep]
        self._added += n
        self._newest_ms = max(self._newest_ms, int(time_ms.max()))

    def rates(self) -> ClickRates:
        """Observed and predicted click rates over the window."""
        held = self._held()
        held = held[~np.isnan(self._rows["label"][held])]  # others came again, for another label
        n, label = len(held), self._rows["label"][held]
        clicks, weight = int(label.sum(dtype=np.float64)), self._weight(held)
        if weight is not None:
            weight = weight.astype(np.float64)
            whole, observed = float(weight.sum()), float((label * weight).sum())
            predicted = {
                role: _share(float((_probability(logit[held]) * weight).sum()), whole)
                for role, logit in self._logits.items()
            }
            return ClickRates(n, clicks, _share(observed, whole), predicted)
        predicted = {
            role: float(_probability(logit[held]).mean()) if n else float("nan")
            for role, logit in self._logits.items()
        }
        return ClickRates(n, clicks, clicks / n if n else float("nan"), predicted)

    def _weight(self, held: Ints) -> Floats | None:
        return self._rows[_WEIGHT][held] if _WEIGHT in self._rows else None

    def _held(self) -> Ints:
        """Places of the window's examples in the ring."""
        return np.flatnonzero(self._rows["time_ms"][: self._added] > self._newest_ms - self.window_ms)

    def quality(self) -> dict[str, Quality]:
        """Role → measures over the window."""
        held = self._held()
        user, label, cold = (self._rows[name][held] for name in ("user", "label", "cold"))
        weight = self._weight(held)
        found = {}
        for role, z in self._logits.items():
            own = self._rows[_LABEL + role][held] if _LABEL + role in self._rows else label
            known = ~np.isnan(own)
            if known.all():
                found[role] = quality(user, z[held], own, cold, weight)
                continue
            part = quality(user[known], z[held][known], own[known], cold[known], _taken(weight, known))
            found[role] = part
        return found
