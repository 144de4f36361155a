"""Measures of two runs on the same examples, with the standard errors of their differences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from livectr.analysis.compare import Z95, differences
from livectr.analysis.paired_auc import Difference
from livectr.trainer.quality.metrics import calibration
from livectr.trainer.quality.predictions import Records, weights_of_both

MEASURES = {"auc": "AUC", "gauc": "GAUC", "logloss": "log loss"}
"""Measures with an interval."""
ROLE = "rank"
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Measures:
    """Measures of the old (a) and the new run (b).

    Args:
        examples: number of common examples.
        hours: event time that they span.
        differences: measure of MEASURES → both values and the standard error of new − old.
        calibration: predicted over observed clicks of old and new run.
    """

    examples: int
    hours: float
    differences: dict[str, Difference]
    calibration: tuple[float, float]

    def interval(self, measure: str) -> tuple[float, float]:
        """Limits of the 95 % interval of new − old; NaN where it is not known."""
        found = self.differences[measure]
        half = Z95 * found.standard_error
        return found.difference - half, found.difference + half


def measured(old: Records, new: Records) -> Measures:
    """Measures of records[n] > 0 of the same examples."""
    label = old["label"].astype(np.float32)
    none = np.zeros(len(old), np.bool_)
    weight = weights_of_both(old, new)
    found = differences(old["user"], old[ROLE], new[ROLE], label, none, weight)
    time_ms = old["time_ms"]
    return Measures(
        len(old),
        float(time_ms.max() - time_ms.min()) / HOUR_MS,
        {name: found[name] for name in MEASURES},
        (calibration(old[ROLE], label, weight), calibration(new[ROLE], label, weight)),
    )
