"""A log with counters, for tests of what is counted."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from livectr import Label, Stream, Target, ages, counts, label_join
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.streams import View
from livectr.ingest.operators.ages import Ages
from livectr.ingest.operators.counts import Counts
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR
from tests.waiting import until

START_MS = 1_700_000_000_000
OVER = ("6s", "50s", "5m")
EVENTS = ("clicks", "carts", "orders")
COLUMNS = {"id": "int64", "user": "int64", "ad": "string", "slot": "int32", "ts": "int64"}
SHOWN = Stream("shown", key="user", time="ts", columns={**COLUMNS, "clicked": "int32"})
EVENT = {"id": "int64", "user": "int64", "ts": "int64"}
CLICKS, CARTS, ORDERS = (Stream(topic, key="user", time="ts", columns=EVENT) for topic in EVENTS)


def log_of(delayed: Delayed = "wait") -> View:
    """Impressions with clicks of 8 s."""
    return label_join(
        SHOWN, CLICKS, on="id", window="8s", wait=None if delayed == "wait" else "2s", delayed=delayed
    )


def log_of_orders() -> View:
    """Impressions with clicks of 8 s; carts of 3 s; orders of 70 s, the later ones learned as late labels."""
    labels = [
        Label("cart", CARTS, window="3s"),
        Label("order", ORDERS, window="70s", wait="20s", delayed="fnw"),
    ]
    return label_join(SHOWN, CLICKS, on="id", window="8s", labels=labels)


def pipeline_of(log: View) -> tuple[Pipeline, Counts, Counts]:
    """Windows by ad, and by ad and slot, as dense features."""
    by_ad, by_both = counts(log, by="ad", over=OVER), counts(log, by=(log.ad, log.slot), over=OVER)
    wanted: dict[str, Expr] = {}
    for name, each in (("ad", by_ad), ("both", by_both)):
        for window in OVER:
            wanted |= {f"{name}_{window}_shown": each.impressions[window]}
            wanted |= {f"{name}_{window}_clicked": each.clicks[window], f"{name}_{window}": each.rate(window)}
    targets = [Target(label.name) for label in log.more_labels]
    sparse = {"slot": log.slot, "ad": log.ad}
    return Pipeline(log, sparse=sparse, dense=wanted, rank=LR(), targets=targets), by_ad, by_both


def aged_pipeline_of(log: View) -> tuple[Pipeline, Ages, Ages]:
    """Windows by ad, and ages of both kinds by ad, and by ad and slot, which are forgotten soon."""
    by_ad, by_both = ages(log, by="ad"), ages(log, by=(log.ad, log.slot), within="100s")
    wanted: dict[str, Expr] = {"ad_6s": counts(log, by="ad", over="6s").clicks["6s"]}
    for name, each in (("ad", by_ad), ("both", by_both)):
        wanted |= {f"{name}_shown": each.seconds("impression"), f"{name}_clicked": each.seconds("click")}
    targets = [Target(label.name) for label in log.more_labels]
    sparse = {"slot": log.slot, "ad": log.ad}
    return Pipeline(log, sparse=sparse, dense=wanted, rank=LR(), targets=targets), by_ad, by_both


def write_log(root: Path, impressions: int = 400) -> str:
    """Write impressions, clicks, carts and orders of four ads; returns the source's URL."""
    rng, more = random.Random(3), random.Random(4)
    lines: dict[tuple[str, int], list[str]] = {(t, p): [] for t in ("shown", *EVENTS) for p in range(2)}
    late: list[tuple[int, str, int, dict[str, int]]] = []
    ts = START_MS
    for number in range(impressions):
        ts += rng.choice([0, 40, 300, 700, 700, 9_000])
        user, clicked = rng.randrange(20), rng.random() < 0.4
        row = {"id": number, "user": user, "ad": f"ad{rng.randrange(4)}", "slot": rng.randrange(2), "ts": ts}
        lines["shown", user % 2].append(json.dumps({**row, "clicked": int(clicked)}))
        if clicked:
            at = ts + rng.randrange(11_000)
            late.append((at, "clicks", user % 2, {"id": number, "user": user, "ts": at}))
        for topic, most_ms in (("carts", 4_000), ("orders", 80_000)):
            if more.random() < 0.4:
                at = ts + more.randrange(most_ms)
                late.append((at, topic, user % 2, {"id": number, "user": user, "ts": at}))
    for _, topic, partition, event in sorted(late, key=lambda entry: entry[0]):
        lines[topic, partition].append(json.dumps(event))
    for (topic, partition), each in lines.items():
        (root / topic).mkdir(parents=True, exist_ok=True)
        (root / topic / f"{partition:05d}.jsonl").write_text("".join(line + "\n" for line in each))
    return f"file:{root}"


def opened(pipeline: Pipeline, url: str) -> ExampleSource:
    """Source that has read the whole log."""
    source = ExampleSource(
        pipeline, url, ReadOptions(until_end=True), rank=0, world=1, dead_letters=DeadLetters(None)
    )
    until(lambda: source.ended, turn=lambda: source.poll(0.1))
    return source


def read(pipeline: Pipeline, url: str, sizes: Sequence[int]) -> list[Examples]:
    """Batches of all examples; the sizes repeat."""
    source = opened(pipeline, url)
    batches: list[Examples] = []
    try:
        while ready := len(source.orders(sizes[len(batches) % len(sizes)])[0]):
            batches.append(source.pop(ready))
    finally:
        source.close()
    return batches
