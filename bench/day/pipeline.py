"""Learns the day: users, ads, the last clicks. Rows leave three hours after their use, ads after four."""

from livectr import Pipeline, Stream, Table, TablePolicy, label_join, ops, recent
from livectr.models import DeepFM

IDS = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
KEPT = "3h"

impressions = Stream("impressions", key="user_id", time="ts", columns=IDS | {"position": "int32"})
clicks = Stream("clicks", key="user_id", time="ts", columns=IDS)
ads = Table(
    "ads",
    key="ad_id",
    time="ts",
    max_age="4h",  # an ad lives six hours and changes its price after three
    columns={"ad_id": "int64", "ts": "int64", "category": "int32", "price": "float32"},
)
log = label_join(impressions, clicks, on="request_id", window="10m").lookup(ads)
clicked = recent(clicks.ad_id, n=10, within=KEPT)

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "ad": log.ad_id,
        "category": ads.category,
        "price": ops.bucketize(ads.price, [2, 5, 10, 20, 50, 100, 200]),
        "position": log.position,
        "hour": ops.hour(log.ts),
        "clicked": clicked,
        "user_x_category": ops.cross(log.user_id, ads.category),
    },
    dense={"price_log": ops.log1p(ads.price)},
    rank=DeepFM(dim=8, hidden=(32, 16)),
    policies=TablePolicy(max_age=KEPT),
)
