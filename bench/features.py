"""Feature extraction: rows per second of the compiled plan of a display-ads view."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import (
    bucketize,
    clip,
    cross,
    hour,
    length,
    log1p,
    lower,
    ngrams,
    split,
    weekday,
)
from livectr.ingest.pipeline import Field, Pipeline

GOAL_ROWS_PER_S = 500_000


def display_ads() -> Pipeline:
    """A typical view: 16 sparse fields (strings, a split, n-grams, crosses, a history of 50) and 3 dense
    numbers."""
    event = dict(request_id="string", user_id="int64", ad_id="int64", ts="int64")
    impressions = Stream(
        "impressions",
        key="user_id",
        time="ts",
        columns={**event, "query": "string", "device": "string", "position": "int32", "site": "string"},
    )
    clicks = Stream("clicks", key="user_id", time="ts", columns=event)
    users = Table("users", key="user_id", columns=dict(user_id="int64", age="int32", city="string"))
    ads = Table(
        "ads",
        key="ad_id",
        columns=dict(ad_id="int64", category="int32", advertiser="int64", price="float32", title="string"),
    )
    log = label_join(impressions, clicks, on="request_id", window="10m").lookup(users).lookup(ads)
    age = bucketize(users.age, [18, 25, 35, 50])
    words = split(lower(log.query), " ")
    sparse: dict[str, Expr | Field] = dict(
        user=log.user_id,
        ad=log.ad_id,
        category=ads.category,
        advertiser=ads.advertiser,
        age=age,
        city=users.city,
        device=log.device,
        site=log.site,
        position=log.position,
        hour=hour(log.ts),
        weekday=weekday(log.ts),
        words=words,
        bigrams=ngrams(words, 2),
        age_x_category=cross(age, ads.category),
        words_x_category=cross(words, ads.category),
        behaviors=Field(recent(clicks.ad_id, n=50, within="14d"), table="ad"),
    )
    dense = dict(price=log1p(clip(ads.price, 0, None)), words_n=length(words), title_n=length(ads.title))
    return Pipeline(log, sparse=sparse, dense=dense, rank="none", items=ads)


def rows_of(pipeline: Pipeline, rows: int, seed: int = 1) -> pa.RecordBatch:
    """Random root columns: words of 3 to 9 letters, histories of 0 to 50 items, other lists of 0 to 8."""
    rng = np.random.default_rng(seed)
    letters = rng.choice(list("abcdefghijKLMNOPäß"), (5_000, 9))
    words = [
        "".join(row[:size]) for row, size in zip(letters, rng.integers(3, 10, len(letters)), strict=True)
    ]
    vocabulary = np.array(words, object)

    def column(name: str, dtype: str, rows: int = rows) -> pa.Array:
        if name.startswith("recent("):
            return pa.array(
                [rng.integers(0, 100_000, n) for n in rng.integers(0, 51, rows)], pa.list_(pa.int64())
            )
        if dtype.startswith("list<"):
            lengths = rng.integers(0, 9, rows)
            items = column(name, dtype[len("list<") : -1], int(lengths.sum()))
            return pa.ListArray.from_arrays(pa.array(np.r_[0, np.cumsum(lengths)].astype(np.int32)), items)
        if name.endswith((".query", ".title")):
            return pa.array([" ".join(rng.choice(vocabulary, n)) for n in rng.integers(0, 7, rows)])
        if dtype == "string":
            return pa.array(rng.choice(vocabulary[:500], rows))
        if name.endswith(".ts"):
            return pa.array(1_700_000_000_000 + np.sort(rng.integers(0, 86_400_000, rows)))
        return pa.array(rng.integers(0, 100_000, rows)).cast(dtypes.arrow_type(dtype))

    roots = pipeline.plan.roots
    return pa.RecordBatch.from_arrays([column(r.name, r.dtype) for r in roots], names=[r.name for r in roots])


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of the benchmark's table: throughput at training batches, latency at a rank request's size."""
    pipeline = display_ads()
    extractor = Extractor(pipeline.plan, engine="fused")
    rows: list[dict[str, object]] = []
    for size, figure, goal in ((4096, "rows/s", GOAL_ROWS_PER_S), (400, "ms per request", 1.0)):
        batch = rows_of(pipeline, size)
        extractor(batch)
        seconds, calls = [], 20 if quick else 300
        for _ in range(calls):
            start = time.perf_counter()
            extractor(batch)
            seconds.append(time.perf_counter() - start)
        median = float(np.median(seconds))
        ours = size / median if figure == "rows/s" else median * 1e3
        rows.append(
            dict(
                figure=f"feature extraction, {figure}",
                workload=f"display ads, {len(pipeline.fields)} fields, {size} rows a batch",
                unit="rows/s" if figure == "rows/s" else "ms",
                ours=ours,
                peer_name=None,
                peer=None,
                ratio=None,
                goal=goal,
                met=ours >= goal if figure == "rows/s" else ours <= goal,
            )
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(row)
