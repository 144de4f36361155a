"""Pipeline of `livectr bench whole-run`: log of `livectr logs simulate`, 16 fields, DeepFM of 256-128."""

from livectr import Pipeline, Stream, Table, label_join, ops, recent
from livectr.models import DeepFM

event = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
shown = {**event, "position": "int32", "page": "string", "query": "string", "context": "string"}
impressions = Stream("impressions", key="user_id", time="ts", columns=shown)
clicks = Stream("clicks", key="user_id", time="ts", columns=event)
users = Table(
    "users",
    key="user_id",
    columns={"user_id": "int64", "age": "int32", "gender": "string", "city": "string"},
)
ads = Table(
    "ads",
    key="ad_id",
    columns={
        "ad_id": "int64", "category": "string", "advertiser": "int64", "price": "float64", "title": "string",
    },
)  # fmt: skip
log = label_join(impressions, clicks, on="request_id", window="2s").lookup(users).lookup(ads)
age = ops.bucketize(users.age, [18, 25, 35, 45, 60])

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "age": age,
        "gender": users.gender,
        "city": users.city,
        "segment": ops.cross(age, users.gender),
        "ad": log.ad_id,
        "category": ads.category,
        "advertiser": ads.advertiser,
        "title": ops.split(ops.lower(ads.title), " "),
        "query": ops.split(ops.lower(log.query), " "),
        "page": log.page,
        "device": ops.json_field(log.context, "device.os", "string"),
        "app": ops.json_field(log.context, "app", "string"),
        "position": log.position,
        "hour": ops.hour(log.ts),
        "clicked": recent(clicks.ad_id, n=20, within="14d"),
    },
    dense={"price": ops.log1p(ads.price)},
    rank=DeepFM(dim=16, hidden=(256, 128)),
)
