"""A shop's log with clicks, carts and orders, and one trainer of them, for tests that kill it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.streams import Label, Stream, label_join
from livectr.ingest.language.targets import Target
from livectr.ingest.language.value import probability
from livectr.ingest.operators.counts import counts
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR, PLE, MMoE, ModelConfig, SharedBottom
from livectr.trainer.run import TrainOptions, train

WINDOWS = {"click": 20_000, "cart": 5_000, "order": 200_000}
PARTITIONS = 2
Rows = list[dict[str, Any]]


def shop(rank: ModelConfig | None = None, *, late: Delayed = "wait", **changes: Any) -> Pipeline:
    """Clicks within 20 s; carts, which need no click, within 5; orders after clicks within 200."""
    columns = dict(user="int64", id="int64", ts="int64")
    shown = Stream("shown", key="user", time="ts", columns=columns | dict(ad="int64", place="int64"))
    clicks = Stream("clicks", key="user", time="ts", columns=columns)
    carts = Stream("carts", key="user", time="ts", columns=columns | dict(amount="int32"))
    orders = Stream("orders", key="user", time="ts", columns=columns | dict(amount="float64"))
    labels = [
        Label("cart", carts, window=WINDOWS["cart"]),
        Label(
            "order", orders, window=WINDOWS["order"], wait=None if late == "wait" else 40_000, delayed=late
        ),
    ]
    log = label_join(shown, clicks, on="id", window=WINDOWS["click"], labels=labels)
    rank = LR() if rank is None else rank
    targets = [Target("cart"), Target("order", after="click")]
    return Pipeline(
        log, sparse={"ad": log.ad, "place": log.place}, **{"rank": rank, "targets": targets, **changes}
    )


def placed_shop(rank: ModelConfig | None = None) -> Pipeline:
    """The shop with all that goes with labels: late orders, the bias of the place, amounts and counters.

    The place is a feature as well.
    """
    whole = shop(rank, late="es_dfm")
    log = whole.log
    carts, orders = (label.stream for label in log.more_labels)
    targets = [
        Target("cart", value=carts.amount % 3, values="ziln"),
        Target("order", after="click", value=orders.amount * 0.5 + log.place),
    ]
    ads = counts(log, by="ad", over=("20s", "2m"))
    return replace(
        whole,
        dense=ads.features("ad"),
        position_bias=log.place,
        targets=targets,
        value=0.1 * probability("click") + 2 * probability("order"),
    )


def shop_log(rows: int) -> dict[str, Rows]:
    """Topic → rows: clicks by ad; carts and orders by place, of a third of the clicks."""
    rng = np.random.default_rng(0)
    user, ad, place = rng.integers(0, 50, rows), rng.integers(0, 20, rows), rng.integers(0, 4, rows)
    ts = 1_700_000_000_000 + np.sort(rng.integers(0, rows * 100, rows))
    clicked = rng.random(rows) < 1 / (1 + np.exp(2 - rng.normal(0, 0.7, 20)[ad]))
    rate = np.array([0.05, 0.2, 0.4, 0.7])[place]
    came = {
        "clicks": clicked,
        "carts": rng.random(rows) < rate / 2,
        "orders": clicked & (rng.random(rows) < rate),
    }
    shown = [
        dict(user=int(user[i]), id=i, ts=int(ts[i]), ad=int(ad[i]), place=int(place[i])) for i in range(rows)
    ]
    log = {"shown": shown}
    for (topic, events), window in zip(came.items(), WINDOWS.values(), strict=True):
        delay = rng.integers(1, window, rows)
        found = [
            dict(user=int(user[i]), id=i, ts=int(ts[i] + delay[i])) for i in np.flatnonzero(events).tolist()
        ]
        if topic != "clicks":
            found = [row | dict(amount=int(ad[row["id"]]) + 2 + row["id"] % 7) for row in found]
        log[topic] = sorted(found, key=lambda row: row["ts"])
    return log


def write_shop(root: Path, rows: int) -> str:
    """Write the log by user; returns the URL of the source."""
    return write_log(root, shop_log(rows))


def write_log(root: Path, log: dict[str, Rows]) -> str:
    """Write rows by topic and user; returns the URL of the source."""
    for topic, events in log.items():
        (root / topic).mkdir(parents=True)
        for p in range(PARTITIONS):
            lines = [json.dumps(row) + "\n" for row in events if row["user"] % PARTITIONS == p]
            (root / topic / f"{p:05d}.jsonl").write_text("".join(lines))
    return f"file:{root}"


MODELS = {
    "LR": LR(),
    "SharedBottom": SharedBottom(dim=8, hidden=(32, 16), tower=(8,)),
    "MMoE": MMoE(dim=8, experts=3, hidden=(16,), tower=()),
    "PLE": PLE(dim=8, experts=1, shared_experts=2, hidden=(16, 8), tower=(8,)),
}


def main(options: str, model: str = "LR") -> None:
    """Train; the options are JSON, the model a name of `MODELS`."""
    train(placed_shop(MODELS[model]), TrainOptions(**json.loads(options)))
