"""Learns the large day: every impression brings 24 keys to each of two tables."""

from livectr import Pipeline, Stream, label_join, ops
from livectr.models import DeepFM

IDS = {"request_id": "int64", "user_id": "int64", "ts": "int64"}

impressions = Stream(
    "impressions", key="user_id", time="ts", columns=IDS | {"position": "int32", "seen": "list<int64>"}
)
clicks = Stream("clicks", key="user_id", time="ts", columns=IDS)
log = label_join(impressions, clicks, on="request_id", window="10m")

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "seen": log.seen,
        "user_x_seen": ops.cross(log.user_id, log.seen),
        "position": log.position,
        "hour": ops.hour(log.ts),
    },
    rank=DeepFM(dim=8, hidden=(32, 16)),
    settings={"batch_size": 1024, "batch_ramp": 0},
)
