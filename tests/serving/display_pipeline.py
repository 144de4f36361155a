"""Small pipeline file with every kind of column, for the tests of serving."""

from __future__ import annotations

from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import bucketize, clip, cross, hour, log1p, lower, split
from livectr.ingest.pipeline import Field, Pipeline
from livectr.models import DeepFM, TwoTower

impressions = Stream(
    "impressions",
    key="user_id",
    time="ts",
    columns={
        "request_id": "string",
        "user_id": "int64",
        "ad_id": "int64",
        "ts": "int64",
        "position": "int32",
        "query": "string",
        "tags": "list<string>",
    },
    fill={"query": "nothing"},
)
clicks = Stream(
    "clicks",
    key="user_id",
    time="ts",
    columns={"request_id": "string", "user_id": "int64", "ad_id": "int64", "ts": "int64"},
)
users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32", "city": "string"})
ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "string", "price": "float32"})

log = label_join(impressions, clicks, on="request_id", window="10m").lookup(users).lookup(ads)

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "ad": log.ad_id,
        "hour": hour(log.ts),
        "position": log.position,
        "words": split(lower(log.query), " "),
        "tags": log.tags,
        "age": bucketize(users.age, [18, 25, 35, 50]),
        "city": users.city,
        "category": ads.category,
        "age_x_category": cross(bucketize(users.age, [18, 25, 35, 50]), ads.category),
        "behaviors": Field(recent(clicks.ad_id, n=5, within="14d"), table="ad"),
    },
    dense={"price": log1p(ads.price), "seniority": clip(users.age, 0, 60) / 6},
    rank=DeepFM(dim=8, hidden=(32, 16)),
    prerank=TwoTower(
        user=("user", "age", "city", "behaviors", "seniority"),
        item=("ad", "category", "price"),
        dim=8,
        hidden=(16,),
        out=8,
    ),
    items=ads,
)
