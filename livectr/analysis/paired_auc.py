"""DeLong's test: difference of two models' AUC on the same examples, with its standard error.

    AUC_r  = Σ_i V10_r(x_i) / m = Σ_j V01_r(y_j) / n       of model r, m positives x_i, n negatives y_j
    V10_r(x_i) = share of negatives that r scores below x_i (ties: half)
    V01_r(y_j) = share of positives that r scores above y_j
    Var(AUC_1 − AUC_2) = Var_i(V10_1 − V10_2) / m + Var_j(V01_1 − V01_2) / n

DeLong, DeLong, Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating
characteristic curves: a nonparametric approach", Biometrics 44 (1988). V10 and V01 come from mid-ranks, in
O((m + n) log(m + n)): Sun and Xu, "Fast implementation of DeLong's algorithm for comparing the areas under
correlated receiver operating characteristic curves", IEEE Signal Processing Letters 21 (2014), eqs. 8-11.

Where examples have weights, shares and means are of weights, and the variance of a weighted mean of V is
Σ w² (V − mean)² / (Σ w)².

The error is that of drawing the examples, which are taken as independent. It does not contain the spread over
seeds of the training; train with two seeds to see that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import erfc, sqrt

import numpy as np
from numpy.typing import NDArray

from livectr.trainer.quality.metrics import gauc, gauc_error

F64 = NDArray[np.float64]
Floats = NDArray[np.float32] | F64


@dataclass(frozen=True)
class Difference:
    """`b` − `a` of a measure, with its standard error (0 where both are equal everywhere)."""

    a: float
    b: float
    standard_error: float

    @property
    def difference(self) -> float:
        """Value of `b` less that of `a`, in units of the measure."""
        return self.b - self.a

    @property
    def p_value(self) -> float:
        """Two-sided p-value by the normal approximation."""
        if self.standard_error == 0:
            return 1.0 if self.difference == 0 else 0.0
        return erfc(abs(self.difference) / self.standard_error / sqrt(2))


def paired_auc(a: Floats, b: Floats, label: NDArray[np.bool_], weight: Floats | None = None) -> Difference:
    """AUCs of scores a, b [n] with labels [n], and the standard error of their difference.

    NaN with fewer than two examples of a class.

    Args:
        a: scores of the first model [n].
        b: scores of the second model [n].
        label: clicked [n].
        weight: at least 0 [n]; None: 1.
    """
    if weight is not None:
        kept = weight > 0
        return _weighted(a[kept], b[kept], label[kept], weight[kept].astype(np.float64))
    positives, negatives = int(label.sum()), int((~label).sum())
    if min(positives, negatives) < 2:
        return Difference(np.nan, np.nan, np.nan)
    (a10, a01), (b10, b01) = (_components(scores, label) for scores in (a, b))
    variance = np.var(b10 - a10, ddof=1) / positives + np.var(b01 - a01, ddof=1) / negatives
    return Difference(float(a10.mean()), float(b10.mean()), float(np.sqrt(variance)))


def paired_gauc(
    user: NDArray[np.int64], a: Floats, b: Floats, label: Floats, weight: Floats | None = None
) -> Difference:
    """GAUCs of scores a, b [n], and the standard error of their difference over users.

    The error is NaN with fewer than two users of both classes, or when all of them have the same difference.
    """
    x, y = (gauc(user, scores, label, weight)[0] for scores in (a, b))
    result = Difference(x, y, gauc_error(user, b, label, minus=a, weight=weight))
    if result.standard_error == 0 and result.difference != 0:
        return replace(result, standard_error=np.nan)
    return result


def _weighted(a: Floats, b: Floats, label: NDArray[np.bool_], weight: F64) -> Difference:
    """`paired_auc` of examples with weights above 0."""
    if min(np.count_nonzero(label), np.count_nonzero(~label)) < 2:
        return Difference(np.nan, np.nan, np.nan)
    areas, parts = [], []
    for scores in (a, b):
        v10 = _weight_below(scores, weight, of=~label)[label] / weight[~label].sum()
        v01 = 1 - _weight_below(scores, weight, of=label)[~label] / weight[label].sum()
        areas.append(float(np.average(v10, weights=weight[label])))
        parts.append((v10, v01))
    variance = 0.0
    for (x, y), w in zip(zip(*parts, strict=True), (weight[label], weight[~label]), strict=True):
        apart = y - x
        variance += float(np.sum((w * (apart - np.average(apart, weights=w))) ** 2)) / float(w.sum()) ** 2
    return Difference(areas[0], areas[1], sqrt(variance))


def _weight_below(scores: Floats, weight: F64, *, of: NDArray[np.bool_]) -> F64:
    """Weight [n] of the examples `of` that score below each example; ties count half."""
    _, place = np.unique(scores, return_inverse=True)
    at_score = np.bincount(place[of], weight[of], minlength=int(place.max()) + 1)
    below: F64 = (np.cumsum(at_score) - 0.5 * at_score)[place]
    return below


def _components(scores: Floats, label: NDArray[np.bool_]) -> tuple[F64, F64]:
    """V10 [m] and V01 [n], in the order of the examples."""
    together = _mid_ranks(scores)
    positives, negatives = label.sum(), (~label).sum()
    v10 = (together[label] - _mid_ranks(scores[label])) / negatives
    v01 = 1 - (together[~label] - _mid_ranks(scores[~label])) / positives
    return v10, v01


def _mid_ranks(scores: Floats) -> F64:
    """Mid-ranks from 1: ties share their mean rank."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: F64 = (last - (count - 1) / 2)[place]
    return ranks
