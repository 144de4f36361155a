"""Pipeline of the freshness run: the demo's logs, joined with both tables; 16 fields, DeepFM.

It has no pictures and no shadow model: those cost more than the way of an event, which is measured.
"""

from livectr import Pipeline, Stream, Table, label_join, ops
from livectr.models import DeepFM

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
        "query": "string",
        "context": "string",
    },
)
clicks = Stream(
    "clicks",
    key="user_id",
    time="ts",
    columns={"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"},
)
users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32", "gender": "string"})
ads = Table(
    "ads",
    key="ad_id",
    columns={"ad_id": "int64", "category": "string", "advertiser": "int64", "price": "float64"},
)

log = label_join(impressions, clicks, on="request_id", window="2s").lookup(users).lookup(ads)
years = ops.bucketize(users.age, [18, 25, 35, 45, 60])

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "age": years,
        "gender": users.gender,
        "ad": log.ad_id,
        "category": ads.category,
        "advertiser": ads.advertiser,
        "price_band": ops.bucketize(ads.price, [2, 5, 10, 20, 50, 100, 200]),
        "device": ops.json_field(log.context, "device.os", "string"),
        "position": log.position,
        "page": log.page,
        "hour": ops.hour(log.ts),
        "query": ops.lower(ops.trim(log.query)),
        "gender_x_category": ops.cross(users.gender, ads.category),
        "age_x_category": ops.cross(years, ads.category),
        "gender_x_ad": ops.cross(users.gender, log.ad_id),
        "page_x_position": ops.cross(log.page, log.position),
    },
    dense={"price": ops.log1p(ads.price)},
    rank=DeepFM(dim=8, hidden=(32,)),
    settings={"batch_size": 8192, "batch_ramp": 0, "publish_interval_s": "1s"},
)
