"""Display ads with pictures: DICM (Ge et al. 2018) on five simulated days, new ads every two hours.

The logs are those of README.md. `livectr experiment ablate` trains the variants of the model below.
"""

from livectr import Content, Field, Pipeline, Stream, Table, label_join, ops, recent
from livectr.models import DICM, EmbeddingModel, TwoTower, adagrad

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
    },
)
clicks = Stream(
    "clicks",
    key="user_id",
    time="ts",
    columns={
        "request_id": "int64",
        "user_id": "int64",
        "ad_id": "int64",
        "image_id": "int64",
        "ts": "int64",
    },
)
users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32", "gender": "string"})
ads = Table(
    "ads",
    key="ad_id",
    columns={"ad_id": "int64", "category": "string", "advertiser": "int64", "image_id": "int64"},
)

log = label_join(impressions, clicks, on="request_id", window="10m").lookup(users).lookup(ads)

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "age": ops.bucketize(users.age, [18, 25, 35, 45, 60]),
        "gender": users.gender,
        "ad": log.ad_id,
        "image": ads.image_id,
        "category": ads.category,
        "advertiser": ads.advertiser,
        "position": log.position,
        "clicked": Field(recent(clicks.ad_id, n=20, within="14d"), table="ad"),
        "clicked_images": Field(recent(clicks.image_id, n=20, within="14d"), table="image"),
    },
    content={"images": Content(("image", "clicked_images"), EmbeddingModel(width=128, hidden=(64, 32)))},
    rank=DICM(
        ad_image="image",
        behavior_images="clicked_images",
        ad="ad",
        target=("ad",),  # pairs of ID fields, for the basic net DIN
        behaviors=("clicked",),
        concat_length=20,
        dim=12,
        hidden=(64, 32),
        optimiser=adagrad(lr=0.02),
        dense_lr=5e-3,
    ),
    prerank=TwoTower(
        user=("user", "age", "gender", "clicked", "clicked_images"),
        item=("ad", "image", "category", "advertiser"),
        user_images=("clicked_images",),
        item_images=("image",),
        dim=12,
        hidden=(64,),
        out=16,
        optimiser=adagrad(lr=0.02),
        dense_lr=5e-3,
    ),
    items=ads,
    settings={"batch_size": 256, "batch_ramp": 0},
)
