"""A small ad log for the trainer's tests: impressions and clicks by user, tables of ads and users."""

import json
import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from kafka import KafkaProducer

from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import bucketize, cross, frequency, hour, log1p, quantile_bins, zscore
from livectr.ingest.pipeline import Pipeline
from livectr.local.kafka import create_topics
from livectr.models import DeepFM, TwoTower

START_MS = 1_700_000_000_000
PARTITIONS = 4
ADS, USERS = 40, 60
TOO_MANY_TAGS = 300
"""So many tags have more pairs than a row may have values."""


def ad_pipeline(prefix: str = "", delayed: Delayed = "wait", *, changing: bool = False) -> Pipeline:
    """DeepFM and two towers over nine fields, one a history, and running statistics; topics begin with
    `prefix`. changing: rows of the tables have a time."""
    impressions = Stream(
        prefix + "impressions",
        key="user_id",
        time="ts",
        columns={
            "request_id": "int64",
            "user_id": "int64",
            "ad_id": "int64",
            "ts": "int64",
            "tags": "list<int64>",
        },
    )
    clicks = Stream(
        prefix + "clicks",
        key="user_id",
        time="ts",
        columns={"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"},
    )
    timed, time = ({"changed": "int64"}, "changed") if changing else ({}, None)
    users = Table(
        prefix + "users", key="user_id", columns={"user_id": "int64", "age": "int32", **timed}, time=time
    )
    ads = Table(
        prefix + "ads",
        key="ad_id",
        columns={"ad_id": "int64", "category": "string", "price": "float32", **timed},
        time=time,
    )
    wait = None if delayed == "wait" else "1s"
    log = label_join(impressions, clicks, on="request_id", window="5s", wait=wait, delayed=delayed)
    log = log.lookup(users).lookup(ads)
    return Pipeline(
        log,
        sparse=dict(
            user=log.user_id,
            ad=log.ad_id,
            hour=hour(log.ts),
            age=bucketize(users.age, [18, 30, 50]),
            category=ads.category,
            age_x_category=cross(bucketize(users.age, [18, 30, 50]), ads.category),
            behaviors=recent(clicks.ad_id, n=5, within="1h"),
            price_bin=quantile_bins(ads.price, 4, fit_rows=500),
            tag_pairs=cross(log.tags, log.tags),
        ),
        dense=dict(price=ads.price, price_z=zscore(ads.price), seen=log1p(frequency(log.ad_id))),
        rank=DeepFM(dim=4, hidden=(16, 8)),
        prerank=TwoTower(
            user=("user", "age", "behaviors"), item=("ad", "category", "price_z"), dim=4, hidden=(8,), out=4
        ),
        items=ads,
    )


def without_statistics() -> Pipeline:
    """Some features of `ad_pipeline`, which need no running statistics."""
    whole = ad_pipeline()
    kept = {name: whole.sparse[name] for name in ("user", "ad", "behaviors", "tag_pairs")}
    return replace(whole, sparse=kept, dense={"price": whole.dense["price"]}, prerank=None)


def without_users() -> Pipeline:
    """DeepFM of `ad_pipeline` alone, without features that a user's examples share: compiled calls learn its
    small batches."""
    whole = ad_pipeline()
    shared = ("user", "age", "behaviors")
    kept = {name: field for name, field in whole.sparse.items() if name not in shared}
    return replace(whole, sparse=kept, prerank=None)


def events(
    impressions: int, seed: int = 0, failing: Collection[int] = ()
) -> dict[str, list[tuple[int, dict[str, object]]]]:
    """topic → (partition, record), in the order in which they are logged. failing: request ids of impressions
    that cannot be extracted."""
    rng = random.Random(seed)
    logged: list[tuple[int, str, int, dict[str, object]]] = []
    for number in range(impressions):
        user, ad, ts = rng.randrange(USERS), rng.randrange(ADS), START_MS + number * 20
        event: dict[str, object] = {"request_id": number, "user_id": user, "ad_id": ad, "ts": ts}
        tags = list(range(TOO_MANY_TAGS)) if number in failing else [number % 7, user % 3]
        logged.append((ts, "impressions", user % PARTITIONS, {**event, "tags": tags}))
        if rng.random() < (0.6 if (user + ad) % 3 == 0 else 0.1):
            late = ts + rng.randrange(4_000)
            logged.append((late, "clicks", user % PARTITIONS, {**event, "ts": late}))
    topics: dict[str, list[tuple[int, dict[str, object]]]] = {"impressions": [], "clicks": []}
    for _, topic, partition, event in sorted(logged, key=lambda e: e[0]):
        topics[topic].append((partition, event))
    topics["users"] = [(0, {"user_id": u, "age": 15 + u}) for u in range(USERS)]
    topics["ads"] = [(0, {"ad_id": a, "category": f"c{a % 5}", "price": a / 10}) for a in range(ADS)]
    return topics


def changes(impressions: int, seed: int = 0) -> dict[str, list[tuple[int, dict[str, object]]]]:
    """Rows of the tables with their times, which change all the time, as `events`."""
    rng = random.Random(seed)
    users: list[dict[str, object]] = [
        {"user_id": u, "age": 15 + u, "changed": START_MS - 1} for u in range(USERS // 2)
    ]
    ads: list[dict[str, object]] = [
        {"ad_id": a, "category": f"c{a % 5}", "price": a / 10, "changed": START_MS - 1}
        for a in range(ADS // 2)
    ]
    for number in range(0, impressions, 5):
        changed = START_MS + number * 20
        users.append({"user_id": rng.randrange(USERS), "age": rng.randrange(15, 75), "changed": changed})
        ad, price = rng.randrange(ADS), rng.randrange(40) / 10
        category = f"c{rng.randrange(9)}"
        ads.append({"ad_id": ad, "category": category, "price": price, "changed": changed})
    return {"users": [(0, row) for row in users], "ads": [(0, row) for row in ads]}


def write_files(root: Path, impressions: int, seed: int = 0, failing: Collection[int] = ()) -> str:
    """The log as JSON lines under `root`; returns its source URL."""
    for topic, records in events(impressions, seed, failing).items():
        (root / topic).mkdir(parents=True)
        for partition in sorted({p for p, _ in records}):
            lines = [json.dumps(record) for p, record in records if p == partition]
            (root / topic / f"{partition:05d}-log.jsonl").write_text("\n".join(lines) + "\n")
    return f"file:{root}"


def write_kafka(url: str, prefix: str, impressions: int, seed: int = 0) -> None:
    """The log in topics of a broker, the tables in compacted ones."""
    logs = events(impressions, seed)
    tables = [prefix + "users", prefix + "ads"]
    create_topics(
        url,
        {prefix + topic: 1 if prefix + topic in tables else PARTITIONS for topic in logs},
        compacted=tables,
    )
    producer = KafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), linger_ms=20)
    for topic, records in logs.items():
        for partition, record in records:
            key = str(record["user_id" if "user_id" in record else "ad_id"]).encode()
            producer.send(prefix + topic, json.dumps(record).encode(), key=key, partition=partition)
    producer.flush()
    producer.close()
