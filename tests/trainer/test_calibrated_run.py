"""Calibration in runs: it counts final labels, and mends what a slow model gets wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.planted import pipeline as planted_pipeline
from livectr.ingest.language.calibration import Calibration
from livectr.ingest.language.delays import Delayed
from livectr.models import LR
from livectr.models.learning import sgd
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.quality.calibrator import CLICKS, COUNT, Calibrator
from livectr.trainer.quality.metrics import calibration
from livectr.trainer.quality.predictions import CALIBRATED, read_predictions
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import ad_pipeline, write_files

EXAMPLES = 24_000
KEPT = 4
"""One in so many of the last half's negatives in segment 1 is in the log."""


@pytest.mark.parametrize("delayed", ["fnw", "es_dfm"])
def test_final_labels_are_counted(tmp_path: Path, delayed: Delayed) -> None:
    """Labels that are learned early as negatives, and corrected, count once and as they end."""
    source = write_files(tmp_path / "logs", 1_000)
    pipeline = replace(ad_pipeline(delayed=delayed), prerank=None, calibration=Calibration("age", 100_000))
    root = tmp_path / "checkpoint"
    options = TrainOptions(
        source, until_end=True, batch_size=32, batch_ramp=0, threads=1, checkpoint=str(root)
    )
    report = train(pipeline, options)
    log, manifest = read_predictions(root / "predictions"), newest_manifest(root)
    assert manifest is not None and len(log) == 1_000
    state = Restored(root, manifest).state(Calibrator.kind)
    assert report.segments["segments"] == len(state["segments"]) == 4
    found = state["bins"][0].sum(axis=1) + state["pane"][0].sum(axis=1)
    for segment, (count, clicks) in zip(state["segments"], found[1:, [COUNT, CLICKS]], strict=True):
        of = log[log["segment"] == segment]
        faded = np.exp(-int(log["label"].sum()) / 100_000)  # the bins fade a little with each pane
        assert count == pytest.approx(len(of), rel=1 - faded) and round(clicks) == of["label"].sum()
    assert report.calibrated["examples"] == 1_000 and report.calibrated["logloss"] != report.logloss


def test_a_segment_with_sampled_negatives_is_mended(tmp_path: Path) -> None:
    """A model that hardly learns its rows promises too few clicks once negatives are sampled."""
    (tmp_path / "planted").mkdir()
    rng = np.random.default_rng(1)
    lines: list[str] = []
    while len(lines) < EXAMPLES:
        segment, other = int(rng.integers(2)), int(rng.integers(20))
        label = int(rng.random() < 0.1)
        if segment and not label and len(lines) > EXAMPLES // 2 and rng.integers(KEPT):
            continue
        ids = {"user": len(lines), "item": 0, "C1": segment, "C2": other}
        lines.append(json.dumps({**ids, "label": float(label)}))
    (tmp_path / "planted" / "00000.jsonl").write_text("\n".join(lines) + "\n")
    pipeline = replace(
        planted_pipeline(LR(optimiser=sgd(lr=1e-6)), fields=2),
        calibration=Calibration("C1", window_clicks=200),
    )
    root = tmp_path / "checkpoint"
    options = TrainOptions(
        f"file:{tmp_path}", until_end=True, batch_size=256, threads=1, checkpoint=str(root)
    )
    report = train(pipeline, options)
    late = read_predictions(root / "predictions")[EXAMPLES * 3 // 4 :]
    for segment in (0, 1):
        of = late[late["segment"] == segment]
        label = of["label"].astype(np.float32)
        raw, mapped = (calibration(of[role], label) for role in ("rank", CALIBRATED))
        assert label.sum() > 250 and abs(raw - 1) > 0.4 and abs(mapped - 1) < 0.1
    judged = report.segments
    assert judged["raw"][0] < 0.7 and judged["raw"][1] > 1.4
    assert 0.9 < judged["calibrated"][0] <= judged["calibrated"][1] < 1.1
