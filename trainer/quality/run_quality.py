"""Quality of a run: its predictions go into the log, and are measured at its end for the report."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from livectr.trainer.part import Part, Scored
from livectr.trainer.quality.predictions import CALIBRATED, PredictionLog, targets_of
from livectr.trainer.quality.value import value_report
from livectr.trainer.setup import Setup

MEASURES = (
    "auc", "gauc", "logloss", "calibration", "skipped_users",
    "cold_examples", "cold_auc", "cold_gauc", "cold_users_left_out",
)  # fmt: skip
"""Measures of the ranking model that are fields of the report themselves."""


@dataclass(frozen=True)
class RunQuality(Part):
    """Quality of every model over the run, on rank 0.

    Attributes:
        log: predictions; its length and digest are in the checkpoint's manifest.
        roles: models.
        challengers, shadows: names of those among them.
    """

    log: PredictionLog
    roles: Collection[str]
    challengers: Collection[str]
    shadows: Collection[str]

    @staticmethod
    def of(setup: Setup, roles: Collection[str]) -> RunQuality | None:
        """Quality of a run on rank 0; None where no predictions are kept, and on other ranks.

        Raises:
            ConfigError: the log's file is no prediction log.
        """
        if setup.rank != 0 or not setup.options.logged:
            return None
        weighted = setup.pipeline.example_weights is not None
        path, keep = setup.options.prediction_file, setup.options.kept_predictions
        targets = [target.role for target in setup.pipeline.targets]
        worths = () if setup.pipeline.worths is None else setup.pipeline.worths.measured
        log = setup.closed(
            PredictionLog(path, roles, keep, weighted=weighted, targets=targets, worths=worths)
        )
        return RunQuality(log, roles, setup.pipeline.challengers, setup.pipeline.shadows)

    def measure(self, scored: Scored) -> None:
        """Append the records to the prediction log."""
        self.log.append(scored.records)

    def measure_again(self, again: Scored) -> None:
        """Append the records to the prediction log."""
        self.log.append(again.records)

    def report(self) -> dict[str, Any]:
        """Measures of the ranking model, over the run and its last 20 %, and of each other model."""
        found: dict[str, dict[str, Any]] = {}
        for role in self.roles:
            over = self.log.report(role)
            found[role] = {**over["all"].as_dict(), "last_20_percent": over["last"].as_dict()}
        held = self.log.read()
        rank, targets = found.get("rank", {}), targets_of(held)
        return {
            **{name: rank[name] for name in MEASURES if name in rank},
            "measured_examples": rank.get("examples"),
            "last_20_percent": rank.get("last_20_percent", {}),
            "prerank": found.get("prerank", {}),
            "heads": {
                role: values
                for role, values in found.items()
                if role.startswith("rank.") and role not in targets
            },
            "targets": {role.removeprefix("rank."): found[role] for role in targets if role in found},
            "calibrated": found.get(CALIBRATED, {}),
            "value": value_report(held, CALIBRATED if CALIBRATED in self.roles else "rank"),
            "challengers": {role: values for role, values in found.items() if role in self.challengers},
            "shadows": {role: values for role, values in found.items() if role in self.shadows},
        }
