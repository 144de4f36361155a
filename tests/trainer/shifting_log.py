"""Log with features that move in its middle, and others that do not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from livectr import Pipeline, Stream, label_join
from livectr.ingest.operators import hour, log1p
from livectr.models import LR

START_MS = 1_700_000_000_000
COLUMNS = {"id": "int64", "user": "int64", "ts": "int64"}
SHOWN = Stream(
    "shown",
    key="user",
    time="ts",
    columns={
        **COLUMNS,
        "ad": "int64",
        "device": "string",
        "tags": "list<int64>",
        "price": "float32",
        "wait": "float32",
    },
)
CLICKS = Stream("clicks", key="user", time="ts", columns=COLUMNS)


def pipeline() -> Pipeline:
    """LR over fields and numbers; `price`, `device` and `tags` are what moves."""
    log = label_join(SHOWN, CLICKS, on="id", window="1s")
    sparse = {"ad": log.ad, "user": log.user, "device": log.device, "tags": log.tags}
    sparse["hour"] = hour(log.ts)
    return Pipeline(log, sparse=sparse, dense={"price": log1p(log.price), "wait": log.wait}, rank=LR())


def rows(count: int, *, moved: bool, seed: int) -> list[dict[str, object]]:
    """Impressions without ids and times.

    Args:
        moved: prices have doubled, a tenth of the devices has become a third, and half of the tags are lost.
    """
    rng = np.random.default_rng(seed)
    ads, users = rng.integers(300, size=count), rng.integers(5_000, size=count)
    price, wait = rng.lognormal(1, 0.5, count) * (2 if moved else 1), rng.normal(0, 1, count)
    tablet, lost = rng.random(count) < (0.35 if moved else 0.1), rng.random(count) < (0.5 if moved else 0.0)
    return [
        {
            "user": int(users[i]),
            "ad": int(ads[i]),
            "device": "tablet" if tablet[i] else "phone",
            "tags": [] if lost[i] else [int(ads[i]) % 7, 7 + int(ads[i]) % 3],
            "price": round(float(price[i]), 3),
            "wait": round(float(wait[i]), 4),
        }
        for i in range(count)
    ]


def write_log(root: Path, count: int, *, every_ms: int, moves: bool) -> str:
    """Write impressions, an event each `every_ms`, and clicks on a tenth; returns the source's URL.

    Args:
        moves: features move after two thirds of the log.
    """
    steady = rows(2 * count // 3, moved=False, seed=1)
    lines: dict[str, list[str]] = {"shown": [], "clicks": []}
    for number, row in enumerate([*steady, *rows(count - len(steady), moved=moves, seed=2)]):
        ids = {"id": number, "user": row["user"], "ts": START_MS + number * every_ms}
        lines["shown"].append(json.dumps({**row, **ids}))
        if number % 10 == 0:
            lines["clicks"].append(json.dumps(ids))
    for topic, each in lines.items():
        (root / topic).mkdir(parents=True)
        (root / topic / "00000.jsonl").write_text("".join(line + "\n" for line in each))
    return f"file:{root}"
