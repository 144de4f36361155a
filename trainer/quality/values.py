"""Measures of predicted values (models.lognormal), each predicted before it is learned.

    calibration    Σ predicted / Σ value, over the run
    rmsle          √ mean (log(1 + predicted) − log(1 + value))², over the run
    gini           normalised Gini coefficient (Wang, Liu & Miao 2019, §4) over the newest `WINDOW` values:
                   the share of all value in those predicted highest; 1: in the order of the true values

Values are of targets that came. Sums are of the weights of the examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from livectr.ingest.language.labels import EARLY_LABEL
from livectr.ingest.language.targets import Target
from livectr.models.lognormal import LOCATION, PAID, SPREAD, expected
from livectr.trainer.part import F32, Arrays, Part
from livectr.trainer.setup import Setup
from livectr.trainer.stream.feed import Batch

F64 = npt.NDArray[np.float64]

WINDOW = 20_000
"""Values of a target that the Gini coefficient is of."""


class ValueQuality(Part):
    """Measures of the values of a run's targets. Rank 0 holds it.

    Args:
        targets: with values, in the order of a batch's.
    """

    kind = "values"

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = tuple(targets)
        self._sums = {target.name: np.zeros(5) for target in targets}  # n, w, w·value, w·predicted, w·error²
        self._newest = {target.name: np.zeros((0, 3)) for target in targets}

    @staticmethod
    def of(setup: Setup) -> ValueQuality | None:
        """Measures of a run on rank 0; None where no target has values, and on other ranks."""
        valued = setup.pipeline.valued
        return ValueQuality(valued) if setup.rank == 0 and valued else None

    def add(self, batch: Batch, logits: Mapping[str, F32]) -> None:
        """Measure a batch.

        Args:
            batch: B examples, or impressions that came again.
            logits: role → f32[B], rank-major, from before the batch was learned.
        """
        assert batch.values is not None
        for v, target in enumerate(self._targets):
            value = batch.values[batch.sequence, v].astype(np.float64)
            early = batch.outcome[batch.sequence] >= EARLY_LABEL  # it is not learned yet
            rows = batch.sequence[known := ~np.isnan(value) & ~early]
            if not len(rows):
                continue
            value = value[known]
            weight = (
                np.ones(len(rows)) if batch.weights is None else batch.weights[rows, 0].astype(np.float64)
            )
            predicted = predictions({role: logits[role][rows] for role in target.value_roles}, target)
            error = np.square(np.log1p(predicted) - np.log1p(value))
            found = np.stack([np.ones(len(rows)), weight, weight * value, weight * predicted, weight * error])
            # One after another, so that no bit depends on the batches.
            self._sums[target.name] = np.cumsum(np.c_[self._sums[target.name], found], axis=1)[:, -1]
            newest = np.concatenate([self._newest[target.name], np.stack([value, predicted, weight], 1)])
            self._newest[target.name] = newest[-WINDOW:]

    def state(self) -> Arrays:
        """State for a checkpoint: equal for equal states."""
        found: dict[str, npt.NDArray[Any]] = {f"{name}.sums": sums for name, sums in self._sums.items()}
        return found | {f"{name}.newest": newest for name, newest in self._newest.items()}

    def load(self, state: Arrays) -> None:
        """Resume from a `state`; a target that it lacks begins anew."""
        for target in self._targets:
            if f"{target.name}.sums" in state:
                self._sums[target.name] = state[f"{target.name}.sums"].copy()
                self._newest[target.name] = state[f"{target.name}.newest"].copy()

    def report(self) -> Mapping[str, Any]:
        """Measures by target."""
        return {"values": {target.name: self.measures(target.name) for target in self._targets}}

    def measures(self, name: str) -> dict[str, float | None]:
        """Measures of a target's values; None: there is nothing to measure."""
        count, weight, value, predicted, error = self._sums[name].tolist()
        held = self._newest[name]
        return {
            "examples": int(count),
            "mean": value / weight if weight else None,
            "predicted": predicted / weight if weight else None,
            "calibration": predicted / value if value else None,
            "rmsle": float(np.sqrt(error / weight)) if weight else None,
            "gini": gini(held[:, 1], held[:, 0], held[:, 2]),
        }


def predictions(logits: Mapping[str, F32], target: Target) -> F64:
    """Expected values f64[n] of a target that came, of the logits [n] of its heads of values."""
    location, spread = (torch.from_numpy(logits[f"{target.role}.{head}"]) for head in (LOCATION, SPREAD))
    paid = logits.get(f"{target.role}.{PAID}")
    found: F64 = expected(location, spread, None if paid is None else torch.from_numpy(paid)).numpy()
    return found


def gini(predicted: F64, value: F64, weight: F64) -> float | None:
    """Normalised Gini coefficient; None where all values are equal, or there is none.

    Args:
        predicted: f64[n].
        value: f64[n], at least 0.
        weight: f64[n].
    """
    best = _gini(value, value, weight)
    return _gini(predicted, value, weight) / best if best > 1e-12 else None


def _gini(by: F64, value: F64, weight: F64) -> float:
    """Gini coefficient 2 Σ w v F / Σ w v − 1, with F the share of the weights that is lower, ties by half."""
    whole = float((weight * value).sum())
    if not whole:
        return 0.0
    _, of = np.unique(by, return_inverse=True)
    mass = np.bincount(of, weight)
    share = (np.cumsum(mass) - mass / 2) / mass.sum()
    return float(2 * (weight * value * share[of]).sum() / whole - 1)
