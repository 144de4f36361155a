"""A small ad log for the trainer's tests: impressions and clicks by user, tables of ads and users."""

import json
import random
from pathlib import Path

from ingest.operators import bucketize, cross, hour
from ingest.pipeline import Pipeline
from ingest.streams import Stream, Table, label_join, recent
from models import DeepFM, TwoTower

START_MS = 1_700_000_000_000
PARTITIONS = 4
ADS, USERS = 40, 60

PIPELINE = """\
import sys
sys.path.insert(0, {here!r})
from ad_logs import ad_pipeline
pipeline = ad_pipeline()
"""


def ad_pipeline() -> Pipeline:
    """DeepFM and two towers over eight fields, one of them a history."""
    impressions = Stream(
        "impressions",
        key="user_id",
        time="ts",
        columns={"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"},
    )
    clicks = Stream(
        "clicks",
        key="user_id",
        time="ts",
        columns={"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"},
    )
    users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32"})
    ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "string", "price": "float32"})
    log = label_join(impressions, clicks, on="request_id", window="5s").lookup(users).lookup(ads)
    return Pipeline(
        log,
        sparse=dict(
            user=log.user_id,
            ad=log.ad_id,
            hour=hour(log.ts),
            age=bucketize(users.age, [18, 30, 50]),
            category=ads.category,
            age_x_category=cross(bucketize(users.age, [18, 30, 50]), ads.category),
            behaviours=recent(clicks.ad_id, n=5, within="1h"),
        ),
        dense=dict(price=ads.price),
        rank=DeepFM(dim=4, hidden=(16, 8)),
        prerank=TwoTower(
            user=("user", "age", "behaviours"), item=("ad", "category"), dim=4, hidden=(8,), out=4
        ),
        items=ads,
    )


def write_pipeline(path: Path) -> Path:
    """A pipeline file that holds `ad_pipeline()`."""
    path.write_text(PIPELINE.format(here=str(Path(__file__).parent)))
    return path


def events(impressions: int, seed: int = 0) -> dict[str, list[tuple[int, dict[str, object]]]]:
    """topic → (partition, record), in the order in which they are logged."""
    rng = random.Random(seed)
    logged: list[tuple[int, str, int, dict[str, object]]] = []
    for number in range(impressions):
        user, ad, ts = rng.randrange(USERS), rng.randrange(ADS), START_MS + number * 20
        event = {"request_id": number, "user_id": user, "ad_id": ad, "ts": ts}
        logged.append((ts, "impressions", user % PARTITIONS, event))
        if rng.random() < (0.6 if (user + ad) % 3 == 0 else 0.1):
            late = ts + rng.randrange(4_000)
            logged.append((late, "clicks", user % PARTITIONS, {**event, "ts": late}))
    topics: dict[str, list[tuple[int, dict[str, object]]]] = {"impressions": [], "clicks": []}
    for _, topic, partition, event in sorted(logged, key=lambda e: e[0]):
        topics[topic].append((partition, event))
    topics["users"] = [(0, {"user_id": u, "age": 15 + u}) for u in range(USERS)]
    topics["ads"] = [(0, {"ad_id": a, "category": f"c{a % 5}", "price": a / 10}) for a in range(ADS)]
    return topics


def write_files(root: Path, impressions: int, seed: int = 0) -> str:
    """The log as JSON lines under `root`; returns its source URL."""
    for topic, records in events(impressions, seed).items():
        (root / topic).mkdir(parents=True)
        for partition in sorted({p for p, _ in records}):
            lines = [json.dumps(record) for p, record in records if p == partition]
            (root / topic / f"{partition:05d}-log.jsonl").write_text("\n".join(lines) + "\n")
    return f"file:{root}"
