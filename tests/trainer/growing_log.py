"""A log that grows, and one trainer of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.streams import Label, Stream, label_join, recent
from livectr.ingest.language.targets import Target
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR
from livectr.trainer.run import TrainOptions, train

ROWS, USERS, PARTITIONS = 1_200, 30, 2
START_MS, STEP_MS, WINDOW_MS = 1_700_000_000_000, 1_000, 60_000
CUT_MS = START_MS + ROWS * STEP_MS // 2
Rows = list[dict[str, int]]


def pipeline(delayed: Delayed = "wait", *, orders: bool = False) -> Pipeline:
    columns = dict(user="int64", id="int64", ts="int64")
    shown = Stream("shown", key="user", time="ts", columns=columns | {"ad": "int64"})
    clicks = Stream("clicks", key="user", time="ts", columns=columns)
    bought = Stream("orders", key="user", time="ts", columns=columns)
    labels = [Label("order", bought, window=2 * WINDOW_MS)] if orders else []
    wait = None if delayed == "wait" else "5s"
    log = label_join(shown, clicks, on="id", window=WINDOW_MS, wait=wait, delayed=delayed, labels=labels)
    seen = {} if orders else {"seen": recent(clicks.id, n=3, within="1h")}
    targets = [Target("order")] if orders else []
    return Pipeline(log, sparse={"ad": log.ad, **seen}, rank=LR(), targets=targets)


def log() -> dict[str, Rows]:
    """An impression a second, clicks of every third within 50 s, orders of every fifth within 100 s."""
    rng = np.random.default_rng(3)
    shown = [
        dict(user=int(user), id=i, ts=START_MS + i * STEP_MS, ad=i % 10)
        for i, user in enumerate(rng.integers(0, USERS, ROWS))
    ]
    found = {"shown": shown}
    for topic, every, longest in (("clicks", 3, 50_000), ("orders", 5, 100_000)):
        rows = [
            {**{name: row[name] for name in ("user", "id")}, "ts": row["ts"] + int(rng.integers(1, longest))}
            for row in shown[::every]
        ]
        found[topic] = sorted(rows, key=lambda row: row["ts"])
    return found


def write(
    root: Path, name: str, begin_ms: int, ends_ms: dict[str, int], partitions: int = PARTITIONS
) -> None:
    """Write the rows from a time on, each topic up to its own end."""
    for topic, rows in log().items():
        for number in range(partitions):
            file = root / topic / f"{number:05d}-{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            begin, end = (begin_ms, ends_ms[topic]) if begin_ms == START_MS else (ends_ms[topic], 1 << 62)
            own = [r for r in rows if begin <= r["ts"] < end and r["user"] % partitions == number]
            file.write_text("".join(json.dumps(row) + "\n" for row in own))


def main(options: str) -> None:
    """Train; the options are JSON."""
    train(pipeline(), TrainOptions(**json.loads(options)))
