"""A feature is added to a model: the run that is continued, beside the old one and a relearned one.

Logs of the simulated market, and a cross of user and ad that brings much, or little. Three runs learn each:

    old        without the cross
    relearned  with the cross, from the log's beginning
    carried    with the cross, from the old run's checkpoint at LEARNED examples (`warm_parts=run`)
    other      as relearned, from other initial weights: a yardstick for small differences
    again S    the same from an earlier checkpoint, so that a share S of LEARNED is learned again (`relearn`)

Batches depend on the log alone, so all learn the same examples in the same order, and score each before they
learn it. The old run is compared over all examples since the change, the relearned one over each part.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.rows import row
from livectr import Pipeline, Stream, Table, label_join, ops
from livectr.models import DeepFM
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.traffic import TrafficOptions
from livectr.simulator.truth import World
from livectr.trainer.quality.metrics import auc
from livectr.trainer.quality.predictions import Records, read_predictions
from livectr.trainer.run import TrainOptions, train

SEEDS, RATE, BATCH = 3, 400, 256
LEARNED, NEXT, EVERY = 256 * 240, 50_000, 10_000
"""Examples of the old run before the change, those that are compared, and between two comparisons."""
WORSE = 0.0005
"""AUC that the changed run may lose to the old one at any comparison."""

AGAIN = (0.25, 0.5, 0.75, 0.9375)
"""Shares of LEARNED that a run learns again; HALF is compared as often as the run that learns none again."""
HALF = 0.5

CROSSES = ("age, gender, category", "gender, category")
"""Fields of the added cross: the first knows the taste of a user's group, the second part of it."""

Scores = Mapping[str, NDArray[np.float32]]


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench carry`."""
    seeds, learned, ahead = (1, 4 * BATCH, 3000) if quick else (SEEDS, LEARNED, NEXT)
    every = ahead // 5
    return [
        line
        for cross in CROSSES
        for line in rows(
            cross, [compared(cross, seed, learned, ahead) for seed in range(1, seeds + 1)], learned, every
        )
    ]


def rows(cross: str, found: Sequence[Scores], learned: int, every: int) -> list[dict[str, object]]:
    """Rows of the AUC beside each peer.

    Args:
        cross: one of CROSSES.
        found: label and scores of each seed.
        learned: examples of the old run before the change.
        every: examples between two comparisons.
    """
    ahead = len(found[0]["label"])

    def beside(
        run: str, peer: str, start: int, end: int, worse: float | None, since: str = ""
    ) -> dict[str, object]:
        pairs = [
            [auc(scores[name][start:end], scores["label"][start:end]) for name in (run, peer)]
            for scores in found
        ]
        ours, theirs = map(statistics.mean, zip(*pairs, strict=True))
        more = [a - b for a, b in pairs]
        return row(
            f"AUC of examples {start + 1:,} to {end:,}",
            f"cross of {cross}, added after {learned:,} examples of a market{since}, {len(found)} seeds, "
            f"{min(more):+.4f} to {max(more):+.4f}",
            "AUC",
            ours,
            peer_name=f"{peer} run",
            peer=theirs,
            goal=None if worse is None else 1 - worse / theirs,
        )

    def since(share: float) -> str:
        return f", {again_of(share, learned) * BATCH:,} of them learned again"

    ends = range(every, ahead + 1, every)
    lines = []
    for run, words in (("carried", ""), (again_name(HALF), since(HALF))):
        lines += [beside(run, "old", 0, end, WORSE, words) for end in ends]
        lines += [
            beside(run, "relearned", end - every, end, 0.0 if end == ahead else None, words) for end in ends
        ]
    fewer = {again_name(share): since(share) for share in AGAIN if share != HALF}
    for run, words in {**fewer, "other": ", all learned again from other initial weights"}.items():
        lines += [beside(run, "relearned", end - every, end, None, words) for end in (every, ahead)]
    return lines


def again_name(share: float) -> str:
    """Name of the run that learns a share of LEARNED again."""
    return f"again {share:g}"


def again_of(share: float, learned: int) -> int:
    """Batches that a run learns again, of those with `learned` examples."""
    return int(share * (learned // BATCH))


def compared(cross: str, seed: int, learned: int, ahead: int) -> Scores:
    """Label, and scores of each run, of the `ahead` examples after the first `learned`; float32[ahead]."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source, seconds = f"file:{root / 'logs'}", (learned + ahead) // RATE + 60
        traffic = TrafficOptions(rate=RATE, seconds=seconds, label_window_ms=10_000, tick_ms=1000)
        simulate(
            SimulateOptions(to=source, world=World(seed=seed), traffic=traffic, real_time=False, images=False)
        )

        def learn(name: str, added: str | None, **options: object) -> Records:
            fixed = dict(until_end=True, batch_size=BATCH, batch_ramp=0, threads=1, seed=seed)
            train(
                pipeline(added),
                TrainOptions(source, predictions=str(root / name), **{**fixed, **options}),  # type: ignore[arg-type]
            ).whole()
            return read_predictions(root / name)

        last = (learned + ahead) // BATCH + 1
        runs = {
            "old": learn("old", None, max_steps=last),
            "relearned": learn("relearned", cross, max_steps=last),
            "other": learn("other", cross, max_steps=last, seed=seed + SEEDS),
        }
        for share in sorted({0.0, *AGAIN}, reverse=True):
            name, batches = again_name(share) if share else "carried", learned // BATCH
            learn(
                "stopped", None, checkpoint=str(root / "before"), max_steps=batches - again_of(share, learned)
            )
            runs[name] = learn(
                name,
                cross,
                max_steps=last,
                checkpoint=str(root / "after"),
                warm_start=str(root / "before"),
                warm_parts="run",
            )
            shutil.rmtree(root / "after")
    shown = {name: records[-len(runs["carried"]) :][:ahead] for name, records in runs.items()}
    label = shown["carried"]["label"]
    assert len(runs["old"]) - len(runs["carried"]) == learned
    assert all((records["label"] == label).all() for records in shown.values())
    return {"label": label.astype(np.float32)} | {name: records["rank"] for name, records in shown.items()}


def pipeline(cross: str | None) -> Pipeline:
    """DeepFM over fields of the simulated market, with one of CROSSES or without."""
    ids = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
    shown = Stream(
        "impressions", key="user_id", time="ts", columns={**ids, "position": "int32", "page": "string"}
    )
    clicks = Stream("clicks", key="user_id", time="ts", columns=ids)
    users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32", "gender": "string"})
    ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "string", "price": "float64"})
    log = label_join(shown, clicks, on="request_id", window="10s").lookup(users).lookup(ads)
    years = ops.bucketize(users.age, [25, 35, 45, 60])
    sparse = dict(
        user=log.user_id,
        age=years,
        gender=users.gender,
        ad=log.ad_id,
        category=ads.category,
        position=log.position,
        page=log.page,
    )
    fields = {"age": years, "gender": users.gender, "category": ads.category}
    if cross is not None:
        sparse["taste"] = ops.cross(*(fields[name] for name in cross.split(", ")))
    return Pipeline(
        log, sparse=sparse, dense=dict(price=ops.log1p(ads.price)), rank=DeepFM(dim=8, hidden=(32, 16))
    )
