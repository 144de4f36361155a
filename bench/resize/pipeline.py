"""Learns the log of resizes: users, ads, and the words of a page, of which there are as many as rows."""

from livectr import Pipeline, Stream, Table, label_join, ops
from livectr.models import DeepFM

IDS = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}

impressions = Stream("impressions", key="user_id", time="ts", columns=IDS | {"words": "list<int64>"})
clicks = Stream("clicks", key="user_id", time="ts", columns=IDS)
users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32"})
log = label_join(impressions, clicks, on="request_id", window="1s").lookup(users)

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "age": ops.bucketize(users.age, [18, 25, 35, 45, 60]),
        "ad": log.ad_id,
        "words": log.words,
        "hour": ops.hour(log.ts),
        "user_x_ad": ops.cross(log.user_id, log.ad_id),
    },
    rank=DeepFM(dim=8, hidden=(32,)),
    settings={"batch_size": 1024, "batch_ramp": 0},
)
