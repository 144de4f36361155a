"""Value of examples: what was predicted before they were learned, and what came.

    predicted   Σ worth_l · P(l) · E(v | l)      over the examples whose label l is known
    realised    Σ worth_l · label_l · v_l        v: value of a target, where the pipeline's value reads it

Their ratio is calibration in money: a model may be calibrated over clicks and wrong where clicks are dear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from livectr.ingest.language.labels import CLICK
from livectr.ingest.plan.worths import CAME
from livectr.trainer.part import Part, Scored
from livectr.trainer.quality.metrics import LAST, bounded
from livectr.trainer.quality.predictions import (
    CALIBRATED,
    WORTH,
    Records,
    known_of,
    label_of,
    weights_of,
    worths_of,
)
from livectr.trainer.quality.telemetry import PREDICTED_VALUE, REALISED_VALUE


@dataclass(frozen=True)
class ValueSums:
    """Values of some examples.

    Args:
        predicted, realised: sums.
    """

    predicted: float
    realised: float

    def __add__(self, other: ValueSums) -> ValueSums:
        """Sums of both."""
        return ValueSums(self.predicted + other.predicted, self.realised + other.realised)

    def as_dict(self) -> dict[str, float | None]:
        """JSON-able; the ratio is None where nothing was earned."""
        ratio = self.predicted / self.realised if self.realised else None
        return {"predicted": self.predicted, "realised": self.realised, "calibration": ratio}


def value_sums(held: Records, role: str) -> dict[str, ValueSums]:
    """Values of records by label; {} if their pipeline has no value.

    Args:
        held: records[B].
        role: model whose probability of the click counts; those of targets are their heads'.
    """
    found = {}
    names = worths_of(held)
    for label in (name for name in names if not name.endswith(CAME)):
        of = role if label == CLICK else f"rank.{label}"
        known = known_of(held, of)
        worth, weight = known[WORTH + label].astype(np.float64), weights_of(known)
        worth = worth if weight is None else worth * weight
        probability = 0.5 * (1 + np.tanh(0.5 * bounded(known[of])))
        if label + CAME in names:
            came = known[WORTH + label + CAME].astype(np.float64)
            realised = came.sum() if weight is None else weight.astype(np.float64) @ came
        else:
            realised = worth @ label_of(known, of).astype(np.float64)
        found[label] = ValueSums(float(worth @ probability), float(realised))
    return found


def value_report(held: Records, role: str) -> dict[str, Any]:
    """Values over all records and the last 20 %, and by label; {} if their pipeline has no value."""
    by_label = value_sums(held, role)
    if not by_label:
        return {}
    last = value_sums(held[int(len(held) * (1 - LAST)) :], role)
    return {
        **total_value(by_label).as_dict(),
        "last_20_percent": total_value(last).as_dict(),
        "labels": {label: sums.as_dict() for label, sums in by_label.items()},
    }


def total_value(by_label: Mapping[str, ValueSums]) -> ValueSums:
    """Sums over all labels."""
    return sum(by_label.values(), ValueSums(0.0, 0.0))


class ValueTotals(Part):
    """Counts what was predicted and what came, for Prometheus; on rank 0."""

    def measure(self, scored: Scored) -> None:
        """Count the values of examples, by the probabilities that servers answer with."""
        role = CALIBRATED if CALIBRATED in scored.logits else scored.champion
        for label, sums in value_sums(scored.records, role).items():
            PREDICTED_VALUE.labels(label).inc(sums.predicted)
            REALISED_VALUE.labels(label).inc(sums.realised)

    def measure_again(self, again: Scored) -> None:
        """Count the values of labels that came later than the click."""
        self.measure(again)
