"""Labels that come late: losses on the simulated market, whose ads have delays that drift.

Each way learns the same log, with a wait of 10 s and a window of 10 minutes. It is measured on final labels
with scores of the impressions' time, over the last half:

    vanilla    cross entropy on provisional negatives and late positives
    fnw        the fake-negative weighted loss (models.fnw)
    oracle     each label is known at once: cross entropy on final labels, each example scored before the next

R-AUC and R-NLL are a loss's shares of the oracle's gain over vanilla, as in Yang et al. (AAAI 2021). Their
ES-DFM reports an R-AUC of 0.36 on Criteo's log.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from bench.rows import row
from livectr import Pipeline, Stream, Table, label_join, ops
from livectr.ingest.language.delays import Delayed
from livectr.models import DeepFM
from livectr.simulator.delays import ClickDelays
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.traffic import TrafficOptions
from livectr.simulator.truth import World
from livectr.trainer.quality.metrics import Quality, quality
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.quality.seen import is_cold
from livectr.trainer.run import TrainOptions, train

SEEDS, SECONDS, RATE, BATCH = 5, 3600, 60, 256
WINDOW_S, WAIT_S = 600, 10
DELAYS = ClickDelays(mean=0.15, spread=0.7, period_s=1800)
WAYS: Mapping[str, Delayed] = {"vanilla": "vanilla", "fnw": "fnw", "oracle": "wait"}
R_AUC = 0.36
"""Goal of the relative AUC: that of the paper."""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench delayed`."""
    seeds, seconds = (2, 900) if quick else (SEEDS, SECONDS)
    return rows([measured(seed, seconds) for seed in range(1, seeds + 1)], seconds)


def rows(found: list[dict[str, Quality]], seconds: int) -> list[dict[str, object]]:
    """Rows of the measures by way, one dictionary for each seed."""
    workload = (
        f"simulated market, {RATE * seconds:,} impressions, clicks after {DELAYS.mean * WINDOW_S:g} s in the "
        f"mean, wait {WAIT_S} s, window {WINDOW_S} s, {len(found)} seeds"
    )

    def each(way: str, measure: str) -> list[float]:
        return [getattr(of[way], measure) for of in found]

    out = []
    for name, measure, unit, relative, goal in (
        ("AUC", "auc", "AUC", "R-AUC", R_AUC),
        ("log loss", "logloss", "nats", "R-NLL", 0.0),
    ):
        of_way = {way: each(way, measure) for way in WAYS}
        gains = [a - b for a, b in zip(of_way["fnw"], of_way["vanilla"], strict=True)]
        mean = {way: statistics.mean(values) for way, values in of_way.items()}
        on = f"{workload}, {statistics.mean(gains):+.4f} ± {statistics.stdev(gains):.4f} on the same log"
        on += f", oracle {mean['oracle']:.4f}"
        better: Literal["more", "less"] = "less" if measure == "logloss" else "more"
        ours, theirs = mean["fnw"], mean["vanilla"]
        out.append(row(f"{name}, fnw", on, unit, ours, peer_name="vanilla", peer=theirs, better=better))
        share = (ours - theirs) / (mean["oracle"] - theirs)
        relation = row(f"{relative}, fnw", workload, "of the oracle's gain", share, goal=goal)
        out.append(relation | {"met": share >= goal})
    for way in WAYS:
        values = each(way, "calibration")
        of = f"{workload}, {min(values):.3f} to {max(values):.3f}"
        out.append(row(f"calibration, {way}", of, "clicks promised to clicks", statistics.mean(values)))
    return out


def measured(seed: int, seconds: int) -> dict[str, Quality]:
    """Way → quality over the last half of a seed's log."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        world = World(ad_interval_s=300, ad_life=12, drift_s=3600, seed=seed)
        traffic = TrafficOptions(
            rate=RATE,
            seconds=seconds,
            label_window_ms=1000 * WINDOW_S,
            tick_ms=1000,
            click_delays=DELAYS,
        )
        source = f"file:{root / 'logs'}"
        simulate(SimulateOptions(to=source, world=world, traffic=traffic, real_time=False, images=False))
        return {name: _learned(root / name, source, way, seed) for name, way in WAYS.items()}


def _learned(path: Path, source: str, way: Delayed, seed: int) -> Quality:
    train(
        pipeline(way),
        TrainOptions(
            source,
            until_end=True,
            batch_size=BATCH,
            batch_ramp=0,
            threads=1,
            seed=seed,
            predictions=str(path),
        ),
    )
    held = read_predictions(path)
    held = held[np.argsort(held["time_ms"], kind="stable")][len(held) // 2 :]
    return quality(held["user"], held["rank"], held["label"].astype(np.float32), is_cold(held["seen"]))


def pipeline(delayed: Delayed) -> Pipeline:
    """DeepFM over nine fields of the simulated market."""
    ids = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
    shown = Stream(
        "impressions", key="user_id", time="ts", columns={**ids, "position": "int32", "page": "string"}
    )
    clicks = Stream("clicks", key="user_id", time="ts", columns=ids)
    users = Table(
        "users",
        key="user_id",
        columns={"user_id": "int64", "age": "int32", "gender": "string", "city": "string"},
    )
    ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "string", "advertiser": "int64"})
    wait = None if delayed == "wait" else 1000 * WAIT_S
    log = label_join(shown, clicks, on="request_id", window=1000 * WINDOW_S, wait=wait, delayed=delayed)
    log = log.lookup(users).lookup(ads)
    years = ops.bucketize(users.age, [25, 35, 45, 60])
    return Pipeline(
        log,
        sparse=dict(
            user=log.user_id,
            age=years,
            gender=users.gender,
            ad=log.ad_id,
            category=ads.category,
            advertiser=ads.advertiser,
            position=log.position,
            page=log.page,
            taste=ops.cross(years, users.gender, ads.category),
        ),
        rank=DeepFM(dim=8, hidden=(32, 16)),
    )
