"""Display ads: raw impressions and clicks, users and ads as look-up tables. `livectr demo` runs this file.

The logs are those of `livectr simulate`. A click counts when it comes within 2 seconds: a simulated minute
stands for hours. For real logs take a window like "30m".
"""

from ingest.operators import bucketize, cross, hour, length, log1p, lower, split
from ingest.pipeline import Pipeline
from ingest.streams import Stream, Table, label_join, recent
from models.base import adagrad, ftrl
from models.deepfm import DeepFM
from models.two_tower import TwoTower

impressions = Stream(
    "impressions",
    key="user_id",
    time="ts",
    columns={
        "request_id": "int64",
        "user_id": "int64",
        "ad_id": "int64",
        "ts": "int64",
        "position": "int32",
        "page": "string",
        "context": "string",
        "device": "string",
    },
    json_fields={"device": "context.device.os"},
)
clicks = Stream(
    "clicks",
    key="user_id",
    time="ts",
    columns={
        "request_id": "int64",
        "user_id": "int64",
        "ad_id": "int64",
        "ts": "int64",
        "dwell_ms": "int64",
    },
)
users = Table(
    "users",
    key="user_id",
    columns={"user_id": "int64", "age": "int32", "gender": "string", "city": "string"},
)
ads = Table(
    "ads",
    key="ad_id",
    columns={
        "ad_id": "int64",
        "category": "string",
        "advertiser": "int64",
        "price": "float64",
        "image_id": "int64",
        "title": "string",
    },
)

log = label_join(impressions, clicks, on="request_id", window="2s").lookup(users).lookup(ads)
age = bucketize(users.age, [18, 25, 35, 45, 60])
behaviours = recent(clicks.ad_id, n=20, within="14d")

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "age": age,
        "gender": users.gender,
        "segment": cross(age, users.gender),
        "city": users.city,
        "ad": log.ad_id,
        "category": ads.category,
        "advertiser": ads.advertiser,
        "price_band": bucketize(ads.price, [2, 5, 10, 20, 50, 100, 200]),
        "words": split(lower(ads.title), " "),
        "segment_x_category": cross(age, users.gender, ads.category),
        "segment_x_ad": cross(age, users.gender, log.ad_id),
        "device": log.device,
        "position": log.position,
        "page": log.page,
        "hour": hour(log.ts),
        "behaviours": behaviours,
    },
    dense={"price": log1p(ads.price), "activity": log1p(length(behaviours))},
    rank=DeepFM(dim=8, hidden=(64, 32), optimiser=adagrad(lr=0.01), first_order=ftrl(alpha=0.05)),
    prerank=TwoTower(
        user=("user", "age", "gender", "segment", "city", "device", "behaviours"),
        item=("ad", "category", "advertiser", "words", "price_band"),
        dim=8,
        hidden=(32,),
        out=16,
        optimiser=adagrad(lr=0.02),
    ),
    items=ads,
    settings={"batch_size": 2048, "batch_interval_ms": "500ms", "publish_interval_s": "2s"},
)
