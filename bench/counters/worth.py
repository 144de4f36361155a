"""AUC of a model with counters beside the same without, over the last half of a log whose ads drift."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

import livectr
from bench.counters.log import ADS, BY_AD, FORGETS_H, HOURS, LOG, drifting
from bench.rows import bounded
from livectr import Pipeline
from livectr.models import DeepFM
from livectr.trainer.quality.metrics import auc
from livectr.trainer.quality.predictions import read_predictions

ROWS, SEEDS = 200_000, 5
GOAL = 0.01
PRIOR = 0.12


def rows(quick: bool) -> list[dict[str, object]]:
    """Rows of the gain, and of what a model that knows every rate would gain."""
    size, seeds = (20_000, 2) if quick else (ROWS, SEEDS)
    found = [measured(seed, size) for seed in range(1, seeds + 1)]
    gains = [with_counters - alone for alone, with_counters, _ in found]
    spread = statistics.stdev(gains)
    alone, counted, known = (statistics.mean(column) for column in zip(*found, strict=True))
    workload = (
        f"DeepFM, {size:,} impressions of {ADS} ads in {HOURS} h, rates forget in {FORGETS_H:g} h, "
        f"{seeds} seeds, {alone:.4f} → {counted:.4f}, spread of the gains {spread:.4f}"
    )
    goal = None if quick else GOAL
    return [
        bounded("gain of AUC by counters", workload, "AUC", statistics.mean(gains), goal=goal, better="more"),
        bounded("gain of AUC by the true rates", workload, "AUC", known - alone, goal=None, better="more"),
    ]


def measured(seed: int, size: int) -> tuple[float, float, float]:
    """AUC without counters, with counters, and of the true rates."""
    columns, logit = drifting(seed, size)
    late = slice(size // 2, None)
    found = []
    for dense in ({}, BY_AD.features("ad", prior=PRIOR)):
        model = DeepFM(dim=8, hidden=(32, 16))
        pipeline = Pipeline(LOG, sparse={"user": LOG.user, "ad": LOG.ad}, dense=dense, rank=model)
        run = livectr.train(pipeline, columns, seed=seed, threads=1)
        scores = read_predictions(Path(run.checkpoint) / "predictions")[late]
        found.append(float(auc(scores["rank"], scores["label"].astype(np.float32))))
    true = auc(logit[late].astype(np.float32), columns["clicked"][late].astype(np.float32))
    return found[0], found[1], float(true)
