"""Our side: models learn a log with all settings at their defaults."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import livectr
from bench.learning.logs import Log
from livectr import Pipeline, Stream, labelled
from livectr.models import LR, DeepFM, ModelConfig
from livectr.trainer.quality.predictions import read_predictions

MODELS: Mapping[str, ModelConfig] = {"DeepFM": DeepFM(), "LR": LR()}


def pipeline(log: Log, models: Mapping[str, ModelConfig] = MODELS) -> Pipeline:
    """The first model over all columns, and the others as its shadows "model1", "model2", …"""
    dense = [f"I{i + 1}" for i in range(log.dense.shape[1])]
    ids = dict.fromkeys(log.fields, "int64")
    events = Stream(
        "rows",
        key="row",
        columns={"row": "int64", "label": "float32", **ids, **dict.fromkeys(dense, "float32")},
    )
    rows = labelled(events, label="label")
    first, *shadows = models.values()
    return Pipeline(
        rows,
        sparse={name: rows[name] for name in log.fields},
        dense={name: rows[name] for name in dense},
        rank=first,
        shadows={f"model{i}": model for i, model in enumerate(shadows, 1)},
    )


def scores(
    log: Log, seed: int, models: Mapping[str, ModelConfig] = MODELS, **settings: Any
) -> dict[str, NDArray[np.float32]]:
    """Model → logits f32[n] that the examples got before they were learned."""
    columns = {"row": np.arange(len(log)), "label": log.label, **log.fields}
    columns |= {f"I{i + 1}": column for i, column in enumerate(log.dense.T)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions"
        data = pa.table(columns)
        trained = livectr.train(pipeline(log, models), data, seed=seed, predictions=str(path), **settings)
        trained.report.whole()
        found = read_predictions(path)
    assert np.array_equal(found["label"], log.label)
    roles = ("rank", *(f"model{i}" for i in range(1, len(models))))
    return {name: found[role] for name, role in zip(models, roles, strict=True)}
