"""Log of planted examples (bench.planted), which a model with pairs of fields predicts better than LR."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.planted import MIX, Planted, pipeline
from livectr.ingest.language.calibration import Calibration
from livectr.ingest.language.promotion import Promotion
from livectr.ingest.pipeline import Pipeline
from livectr.models import FM, LR, DeepFM, TwoTower

CARDINALITY = (30, 30, 30, 30)
PARTITIONS = 4
WINDOW = 2_000
CALIBRATION = Calibration(by="C4", window_clicks=500)
TOWERS = TwoTower(user=("C1", "C3"), item=("C2",), dim=2, hidden=(4,), out=2)


def contest_pipeline(*, prerank: bool = False, **changes: Any) -> Pipeline:
    """LR, challenged by a small DeepFM and an FM, on fields C1 to C4; C2 is of the item."""
    built = pipeline(LR(), fields=len(CARDINALITY), prerank=TOWERS if prerank else None)
    challengers = {
        "deep": DeepFM(dim=2, hidden=(4,)),
        "fm": FM(dim=4),
    }
    rule = Promotion(margin=0.01, window=WINDOW)
    return replace(built, **{"challengers": challengers, "promotion": rule, **changes})


def write_log(root: Path, examples: int, *, seed: int = 1) -> str:
    """Write the log as JSON lines in PARTITIONS partitions; returns its source URL."""
    truth = Planted(CARDINALITY, exponent=(0.3, 0.3), strength=(0.2, 2.0, 0.0), rate=0.3, seed=seed)
    features, label, _ = truth.batch(np.random.default_rng(seed), examples)
    inverse = pow(int(MIX), -1, 1 << 64)
    ids = (features.keys.view(np.uint64) * np.uint64(inverse)).astype(np.int64).reshape(len(CARDINALITY), -1)
    (root / "planted").mkdir(parents=True)
    for partition in range(PARTITIONS):
        lines = [
            json.dumps(
                {
                    "user": int(ids[0, i]) * PARTITIONS + partition,
                    "item": int(ids[1, i]),
                    "label": float(label[i]),
                }
                | {f"C{f + 1}": int(ids[f, i]) for f in range(len(CARDINALITY))}
            )
            for i in range(partition, examples, PARTITIONS)
        ]
        (root / "planted" / f"{partition:05d}.jsonl").write_text("\n".join(lines) + "\n")
    (root / "items").mkdir()
    items = [json.dumps({"item": i, "C2": i}) for i in range(CARDINALITY[1])]
    (root / "items" / "00000.jsonl").write_text("\n".join(items) + "\n")
    return f"file:{root}"
