"""Pipeline whose histories and look-up rows leave after minutes, or look-up rows for lack of room."""

import os

from livectr import Pipeline, Stream, Table, label_join, recent
from livectr.models import LR

COLUMNS = {"id": "int64", "user": "int64", "ad": "int64", "ts": "int64"}

shown = Stream("shown", key="user", time="ts", columns=COLUMNS)
clicks = Stream("clicks", key="user", time="ts", columns=COLUMNS)
bound = {"max_bytes": str(31 * 88)} if "LEFT_ROOM" in os.environ else {"max_age": "10m"}
ads = Table("ads", key="ad", columns={"ad": "int64", "ts": "int64", "kind": "int64"}, time="ts", **bound)
log = label_join(shown, clicks, on="id", window="1s").lookup(ads)
past = recent(clicks.ad, n=3, within="1m")

pipeline = Pipeline(
    log,
    sparse={"ad": log.ad, "kind": ads.kind, "past": past},
    rank=LR(),
    settings={"batch_size": 128, "batch_ramp": 0, "publish_interval_s": 0.001, "min_examples": 0},
)
