"""Labels that come late: losses on the simulated market, whose ads have delays that differ and drift.

A log of conversions: three of ten impressions have a label, some ads' within the wait of 10 s, other ads'
over a window of 10 minutes. Each way learns the same log. It is measured on final labels with scores of the
impressions' time, over the last half:

    pretrained  cross entropy on final labels of the first half; then it learns nothing more
    wait        cross entropy on final labels, when they are final: a model of a window ago
    vanilla     cross entropy on provisional negatives and late positives
    fnw         the fake-negative weighted loss, completed by final labels (models.fnw)
    es_dfm      ES-DFM, completed by final labels (models.es_dfm)
    oracle      cross entropy on final labels, each known at once: an example is scored before the next

R-AUC and R-NLL are a loss's shares of the oracle's gain over vanilla, as in Yang et al. (AAAI 2021). Their
ES-DFM reports an R-AUC of 0.36 on Criteo's log.

A loss can win only what provisional negatives have spoilt. They pull an ad's rate c to c / (1 + c s), with s
its share of clicks after the wait. Where s is alike for all ads, that moves every rate and no order: the
oracle's gain in AUC is then all freshness, which no weight brings. `spoilt` is the AUC that this costs
a model that knows every c and s. The rest of the oracle's gain is freshness.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.rows import row
from livectr import Pipeline, Stream, Table, label_join, ops
from livectr.analysis.score_log import Scoring, score_log
from livectr.ingest.language.delays import Delayed
from livectr.models import DeepFM
from livectr.simulator.delays import ClickDelays
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.traffic import Traffic, TrafficOptions
from livectr.simulator.truth import World
from livectr.trainer.quality.metrics import Quality, auc, quality
from livectr.trainer.quality.predictions import Records, read_predictions
from livectr.trainer.quality.seen import is_cold
from livectr.trainer.run import TrainOptions, train

SEEDS, SECONDS, RATE, BATCH = 5, 3600, 60, 256
WINDOW_S, WAIT_S = 600, 10
BASE = -0.9
DELAYS = ClickDelays(mean=0.06, spread=2.0, period_s=7200)
TRAINED: Mapping[str, Delayed] = {"vanilla": "vanilla", "fnw": "fnw", "es_dfm": "es_dfm", "oracle": "wait"}
WAYS = ("pretrained", "wait", *TRAINED)
LOSSES = ("fnw", "es_dfm")
STALE_S = 600
"""Impressions of so many seconds are scored by one model of `wait`: it is a window old in the mean."""
R_AUC = 0.36
"""Goal of the relative AUC: that of the paper."""

Found = Mapping[str, Quality]


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench delayed`."""
    seeds, seconds = (2, 1800) if quick else (SEEDS, SECONDS)
    each = range(1, seeds + 1)
    return rows([measured(seed, seconds) for seed in each], [spoilt(seed, seconds) for seed in each], seconds)


def rows(found: list[Found], lost: list[float], seconds: int) -> list[dict[str, object]]:
    """Rows of the measures by way and of the AUC that is `spoilt`, one entry for each seed."""
    workload = (
        f"simulated market, {RATE * seconds:,} impressions, mean delays of ads from "
        f"{1000 * _extreme(-1):.0f} ms to {_extreme(1):.0f} s, wait {WAIT_S} s, window {WINDOW_S} s, "
        f"{len(found)} seeds"
    )

    def each(way: str, measure: str) -> list[float]:
        return [getattr(of[way], measure) for of in found]

    out = []
    for name, measure, unit, relative, goal in (
        ("AUC", "auc", "AUC", "R-AUC", R_AUC),
        ("log loss", "logloss", "nats", "R-NLL", 0.0),
    ):
        of_way = {way: each(way, measure) for way in WAYS}
        mean = {way: statistics.mean(values) for way, values in of_way.items()}
        better: Literal["more", "less"] = "less" if measure == "logloss" else "more"
        for way in (way for way in WAYS if way != "vanilla"):
            gains = [a - b for a, b in zip(of_way[way], of_way["vanilla"], strict=True)]
            on = f"{workload}, {statistics.mean(gains):+.4f} ± {statistics.stdev(gains):.4f} on the same log"
            ours, theirs = mean[way], mean["vanilla"]
            out.append(row(f"{name}, {way}", on, unit, ours, peer_name="vanilla", peer=theirs, better=better))
        for way in LOSSES:
            share = (mean[way] - mean["vanilla"]) / (mean["oracle"] - mean["vanilla"])
            aim = goal if way == "es_dfm" else None
            relation = row(f"{relative}, {way}", workload, "of the oracle's gain", share, goal=aim)
            out.append(relation if aim is None else relation | {"met": share >= aim})
    on = f"{workload}, {min(lost):.4f} to {max(lost):.4f}; true rates beside biased rates"
    out.append(row("AUC that vanilla's bias costs", on, "AUC", statistics.mean(lost)))
    for way in WAYS:
        values = each(way, "calibration")
        of = f"{workload}, {min(values):.3f} to {max(values):.3f}"
        out.append(row(f"calibration, {way}", of, "clicks promised to clicks", statistics.mean(values)))
    return out


def _extreme(side: int) -> float:
    """Least (-1) or greatest (1) mean delay of an ad in seconds."""
    return float(WINDOW_S * DELAYS.mean * np.exp(side * np.sqrt(2) * DELAYS.spread))


def market(seed: int, seconds: int) -> tuple[World, TrafficOptions]:
    """Market and traffic of a seed."""
    world = World(ad_interval_s=300, ad_life=12, drift_s=3600, base=BASE, seed=seed)
    return world, TrafficOptions(
        rate=RATE, seconds=seconds, label_window_ms=1000 * WINDOW_S, tick_ms=1000, click_delays=DELAYS
    )


def spoilt(seed: int, seconds: int) -> float:
    """AUC that the bias of vanilla costs a model that knows the truth: of c less of c / (1 + c s)."""
    shown = [tick.truth for tick in Traffic(*market(seed, seconds))]
    rate, ad, ts = (
        np.concatenate([getattr(s, name) for s in shown]) for name in ("probability", "ad_id", "ts")
    )
    late = np.exp(-WAIT_S / WINDOW_S / DELAYS.means(ad.astype(np.int64), ts.astype(np.int64)))
    label = (np.random.default_rng(seed).random(len(rate)) < rate).astype(np.float32)
    return auc(rate, label) - auc(rate / (1 + rate * late), label)


def measured(seed: int, seconds: int) -> dict[str, Quality]:
    """Way → quality over the last half of a seed's log."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        world, traffic = market(seed, seconds)
        source = f"file:{root / 'logs'}"
        simulate(SimulateOptions(to=source, world=world, traffic=traffic, real_time=False, images=False))
        found = {}
        for name, way in TRAINED.items():
            train(pipeline(way), _options(source, seed, predictions=str(root / name))).whole()
            found[name] = read_predictions(root / name)
        times = np.sort(found["oracle"]["time_ms"])
        half = int(times[len(times) // 2])
        found |= _stale(root, source, seed, found["oracle"], half)
        return {way: _quality(found[way][found[way]["time_ms"] >= half]) for way in WAYS}


def _options(source: str, seed: int, **options: object) -> TrainOptions:
    fixed = dict(until_end=True, batch_size=BATCH, batch_ramp=0, threads=1, seed=seed)
    return TrainOptions(source, **{**fixed, **options})  # type: ignore[arg-type]


def _stale(root: Path, source: str, seed: int, learned: Records, half: int) -> dict[str, Records]:
    """Scores of the last half by models of the past, which are checkpoints of one run on final labels.

    Args:
        learned: the log in the order in which that run learns it.
        half: time at which the last half begins, in ms.
    """
    file = root / "pipeline.py"
    file.write_text("from bench.delayed import pipeline as of\n\npipeline = of('wait')\n")
    pretrained, wait = learned[:0], []
    for number, (step, start, end) in enumerate(steps(learned["time_ms"], half)):
        options = _options(source, seed, checkpoint=str(root / "checkpoint"), max_steps=step)
        train(pipeline("wait"), options).whole()
        path = score_log(Scoring(str(file), root / "checkpoint", source, root / f"scored-{number}"))
        assert path is not None
        scored = read_predictions(path)
        if (scored["time_ms"] >= half).sum() == (learned["time_ms"] >= half).sum():
            pretrained = scored  # the last model that has learned nothing of the last half
        wait.append(scored[(scored["time_ms"] >= start) & (scored["time_ms"] < end)])
    return {"pretrained": pretrained, "wait": np.concatenate(wait)}


def steps(time_ms: NDArray[np.int64], half: int) -> Iterator[tuple[int, int, int]]:
    """Steps to stop at, and the times of the impressions that are then a window old; int64[n] of the log."""
    stale, window = 1000 * STALE_S, 1000 * WINDOW_S
    for start in range(half, int(time_ms.max()) + 1, stale):
        step = int(np.searchsorted(np.maximum.accumulate(time_ms), start + stale // 2 - window)) // BATCH
        yield step, start, start + stale


def _quality(held: Records) -> Quality:
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
