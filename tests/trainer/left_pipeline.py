"""Pipeline whose histories and look-up rows leave after minutes."""

from livectr import Pipeline, Stream, Table, label_join, recent
from livectr.models import LR

COLUMNS = {"id": "int64", "user": "int64", "ad": "int64", "ts": "int64"}

shown = Stream("shown", key="user", time="ts", columns=COLUMNS)
clicks = Stream("clicks", key="user", time="ts", columns=COLUMNS)
ads = Table(
    "ads", key="ad", columns={"ad": "int64", "ts": "int64", "kind": "int64"}, time="ts", max_age="10m"
)
log = label_join(shown, clicks, on="id", window="1s").lookup(ads)
past = recent(clicks.ad, n=3, within="1m")

pipeline = Pipeline(
    log,
    sparse={"ad": log.ad, "kind": ads.kind, "past": past},
    rank=LR(),
    settings={"batch_size": 128, "batch_ramp": 0, "publish_interval_s": 0.05, "min_examples": 0},
)
