"""A feature that joins a run: AUC of the run that continues, of the old one, and of one that relearns all.

One simulated log, of which the old model learns the first part. Then three models learn on, each scored
before it learns:

    old         the old pipeline, on its own checkpoint
    carried     the new pipeline, which continues the old run (warm_parts=run)
    relearned   the new pipeline, which has learned all of the log from its beginning

The feature is a cross of gender and category. AUC is over the first fifth of the examples since the change,
over two fifths and so on, and over the last fifth for the end.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.rows import bounded, row
from livectr import Pipeline, Stream, Table, label_join, ops
from livectr.analysis.paired_runs import common
from livectr.models import DeepFM
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.traffic import TrafficOptions
from livectr.simulator.truth import World
from livectr.trainer.quality.metrics import auc
from livectr.trainer.quality.predictions import Records, read_predictions
from livectr.trainer.run import TrainOptions, train

SEEDS, BEFORE, AFTER, RATE, BATCH = 3, 60_000, 50_000, 500, 256
LOSS = 0.0005
"""Most AUC that the carried model may be below the old one, at any time."""
Found = dict[str, list[float]]


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench added-feature`."""
    seeds, before, after = (1, 6_000, 5_000) if quick else (SEEDS, BEFORE, AFTER)
    return rows([measured(seed, before, after) for seed in range(1, seeds + 1)], before, after)


def rows(found: list[Found], before: int, after: int) -> list[dict[str, object]]:
    """Rows of the AUCs of each seed: way → AUC at each of five points, then that of the last fifth."""
    workload = f"simulated market, {before:,} examples before the change, {len(found)} seeds"
    out = []
    for at in range(len(found[0]["old"]) - 1):
        gains = [seed["carried"][at] - seed["old"][at] for seed in found]
        figure = f"carried less old, first {after * (at + 1) // 5:,} examples"
        on = f"{workload}, {min(gains):+.4f} to {max(gains):+.4f}"
        out.append(bounded(figure, on, "AUC", min(gains), goal=-LOSS, better="more"))
    for way in ("old", "relearned"):
        gains = [seed["carried"][-1] - seed[way][-1] for seed in found]
        mean = statistics.mean(gains)
        on = f"{workload}, {min(gains):+.4f} to {max(gains):+.4f}"
        out.append(
            bounded(
                f"carried less {way}, last {after // 5:,} examples", on, "AUC", mean, goal=0, better="more"
            )
        )
    for way in ("old", "carried", "relearned"):
        mean = statistics.mean(seed[way][-1] for seed in found)
        out.append(row(f"AUC, {way}, last {after // 5:,} examples", workload, "AUC", mean))
    return out


def measured(seed: int, before: int, after: int) -> Found:
    """Way → AUC over the first fifth, two fifths, … of the examples since the change, and the last fifth."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = f"file:{root / 'logs'}"
        traffic = TrafficOptions(rate=RATE, seconds=(before + after) * 11 // 10 // RATE, label_window_ms=2000)
        world = World(seed=seed)
        simulate(SimulateOptions(to=source, world=world, traffic=traffic, real_time=False, images=False))
        old, new = pipelines()
        common_options = dict(until_end=True, batch_size=BATCH, batch_ramp=0, threads=1, seed=seed)

        def learn(pipeline: Pipeline, name: str, steps: int, **more: object) -> Records:
            options = dict(common_options, checkpoint=str(root / name), max_steps=steps, **more)
            train(pipeline, TrainOptions(source, **options))  # type: ignore[arg-type]
            return read_predictions(root / name / "predictions")

        change, end = before // BATCH, (before + after) // BATCH + 1
        learn(old, "old", change)
        carried = learn(new, "carried", end, warm_start=str(root / "old"), warm_parts="run")[:after]
        logs = {"old": learn(old, "old", end), "carried": carried, "relearned": learn(new, "relearned", end)}
        for name, log in logs.items():
            ours, theirs = common(carried, log)
            assert len(ours) == after, f"{name} has scored {len(ours)} of the {after} examples"
            logs[name] = log[theirs]
        return {name: _aucs(log) for name, log in logs.items()}


def _aucs(log: Records) -> list[float]:
    fifth = len(log) // 5
    parts = [*(slice(0, fifth * n) for n in range(1, 6)), slice(4 * fifth, None)]
    return [float(auc(log["rank"][part], log["label"][part].astype(np.float32))) for part in parts]


def pipelines() -> tuple[Pipeline, Pipeline]:
    """The pipeline of docs/add-a-feature.md, and the one with a feature more."""
    ids = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
    shown = Stream("impressions", key="user_id", time="ts", columns={**ids, "page": "string"})
    clicks = Stream("clicks", key="user_id", time="ts", columns=ids)
    users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32", "gender": "string"})
    ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "string", "price": "float64"})
    log = label_join(shown, clicks, on="request_id", window="2s").lookup(users).lookup(ads)
    sparse = {"user": log.user_id, "gender": users.gender, "ad": log.ad_id, "category": ads.category}
    old = Pipeline(
        log, sparse=sparse, dense={"price": ops.log1p(ads.price)}, rank=DeepFM(dim=8, hidden=(16,))
    )
    cross = ops.cross(users.gender, ads.category)
    return old, replace(old, sparse={**sparse, "gender_x_category": cross})
