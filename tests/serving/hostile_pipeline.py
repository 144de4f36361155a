"""A pipeline whose features repeat what a request sends: crosses, texts and attention over its lists."""

from __future__ import annotations

from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import concat, contains, cross, key, length, lower, split, token_overlap, unique
from livectr.ingest.pipeline import Field, Pipeline
from livectr.models import DIN

impressions = Stream(
    "impressions",
    key="user_id",
    time="ts",
    columns={
        "request_id": "string",
        "user_id": "int64",
        "ad_id": "int64",
        "ts": "int64",
        "query": "string",
        "title": "string",
        "tags": "list<string>",
        "seen": "list<int64>",
    },
    fill={"query": "", "title": ""},
)
clicks = Stream(
    "clicks",
    key="user_id",
    time="ts",
    columns={"request_id": "string", "user_id": "int64", "ad_id": "int64", "ts": "int64"},
)
ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "string"})
log = label_join(impressions, clicks, on="request_id", window="10m").lookup(ads)
words = split(lower(log.query), " ")

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "ad": log.ad_id,
        "category": ads.category,
        "query": key(log.query),
        "words": unique(words),
        "tags": log.tags,
        "tags_x_category": cross(log.tags, ads.category),
        "query_and_title": key(concat(log.query, log.title)),
        "in_title": contains(log.title, "a"),
        "seen": Field(log.seen, table="ad"),
        "clicked": Field(recent(clicks.ad_id, n=5, within="14d"), table="ad"),
    },
    dense={"overlap": token_overlap(words, split(log.title, " ")), "length": length(log.query)},
    rank=DIN(target=("ad",), behaviors=("seen",), dim=4, hidden=(8,), attention=(6,)),
)
