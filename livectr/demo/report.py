"""Report of the demo: numbers of simulator, trainer, servers and clients.

Quality at the top level is that of the last fifth of the examples, when the model has seen enough;
`whole_run` and `last_window` have both. Cold: ads that were learned fewer than 20 times. `shadows` has the
quality of each shadow model by name. Bayes is the AUC of the true click probabilities, on the same examples
and labels.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from livectr.simulator.ledger import read_ledger
from livectr.trainer.quality.metrics import LAST, auc, quality
from livectr.trainer.quality.predictions import roles_of
from livectr.trainer.quality.seen import is_cold

KEYS = (
    "events", "impressions", "clicks", "examples_trained", "examples_per_second", "auc", "gauc", "logloss",
    "calibration", "cold_auc", "cold_gauc", "shadows", "bayes_auc", "lost_events", "duplicated_events",
    "dead_letters", "published_versions", "published_rows", "freshness_seconds", "rank", "prerank",
)  # fmt: skip
REQUESTED = ("requests", "candidates", "errors", "older", "p50_ms", "p99_ms")
"""Keys of `rank` and `prerank`."""


def account(ledger: Path, predictions: NDArray[np.void]) -> dict[str, Any]:
    """Join of the ledger and the log of predictions, and the quality over the whole run and its end.

    lost_events: impressions that were never trained; duplicated_events: further trainings of an impression;
    unknown_events: trainings of impressions that were never written; wrong_labels: labels that differ.
    """
    truth = read_ledger(ledger)
    request = truth["request_id"].to_numpy()  # rising
    instance = predictions["instance"]
    unique, first = np.unique(instance, return_index=True)
    at = np.searchsorted(request, unique).clip(max=max(len(request) - 1, 0))
    known = request[at] == unique if len(request) else np.zeros(len(unique), bool)
    row, first = at[known], first[known]
    wrong = truth["label"].to_numpy()[row] != predictions["label"][first]
    probability = np.full(len(instance), np.nan)
    places = np.searchsorted(request, instance).clip(max=max(len(request) - 1, 0))
    if len(request):
        probability = np.where(request[places] == instance, truth["probability"].to_numpy()[places], np.nan)
    start = int(len(instance) * (1 - LAST))
    windows = {
        name: _quality(predictions[part], probability[part])
        for name, part in (("whole_run", slice(None)), ("last_window", slice(start, None)))
    }
    return {
        "lost_events": len(request) - len(row),
        "duplicated_events": len(instance) - len(unique),
        "unknown_events": int((~known).sum()),
        "wrong_labels": int(wrong.sum()),
        **windows,
    }


def _quality(predictions: NDArray[np.void], probability: NDArray[np.float64]) -> dict[str, Any]:
    known = ~np.isnan(probability)
    predictions, probability = predictions[known], probability[known]
    label = predictions["label"].astype(np.float32)
    cold = is_cold(predictions["seen"])
    roles = roles_of(predictions)
    by_model = {
        role: quality(predictions["user"], predictions[role], label, cold).as_dict()
        for role in roles
        if role != "prerank"
    }
    values: dict[str, Any] = {**by_model.pop("rank"), "shadows": by_model, "prerank_auc": None}
    if "prerank" in roles:
        values["prerank_auc"] = _finite(auc(predictions["prerank"], label))
    values["bayes_auc"] = _finite(auc(np.log(probability / (1 - probability)), label))
    return values


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def report(
    *,
    simulated: Mapping[str, Any],
    trained: Mapping[str, Any],
    accounted: Mapping[str, Any],
    freshness: Mapping[str, float | None],
    requested: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    trainer_restarts: int,
) -> dict[str, Any]:
    """The report, with the keys of KEYS first."""
    last = accounted["last_window"]
    roles = {role: {name: requested[role][name] for name in REQUESTED} for role in ("rank", "prerank")}
    return {
        "events": simulated["records"],
        "impressions": simulated["impressions"],
        "clicks": simulated["clicks"],
        "examples_trained": trained["examples_trained"],
        "examples_per_second": trained["examples_per_second"],
        **{name: last[name] for name in ("auc", "gauc", "logloss", "calibration")},
        **{name: last[name] for name in ("cold_auc", "cold_gauc", "shadows", "bayes_auc")},
        "lost_events": accounted["lost_events"],
        "duplicated_events": accounted["duplicated_events"],
        "dead_letters": trained["dead_letters"],
        "published_versions": trained["published_versions"],
        "published_rows": trained["published_rows"],
        "freshness_seconds": dict(freshness),
        **roles,
        "last_window": last,
        "whole_run": accounted["whole_run"],
        "unknown_events": accounted["unknown_events"],
        "wrong_labels": accounted["wrong_labels"],
        "trainer_restarts": trainer_restarts,
        "settings": dict(settings),
        "simulator": dict(simulated),
        "trainer": dict(trained),
    }


def last_json_line(text: str) -> dict[str, Any]:
    """Last line of a log that is a JSON object; {}: no such line."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                continue  # a line that is being written
            return value if isinstance(value, dict) else {}
    return {}
