"""The view of the request benchmark: display ads with images, the same features for both models."""

from __future__ import annotations

from bench.images.pipelines import model
from livectr.ingest.language.content import Content
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import bucketize, clip, cross, hour, log1p, weekday
from livectr.ingest.pipeline import Field, Pipeline
from livectr.models.embedding import EmbeddingModel

BEHAVIORS, WIDTH = 32, 4096


def view(*, images: bool) -> Pipeline:
    """15 sparse fields, of which two are histories of BEHAVIORS ads and their images."""
    event = dict(request_id="string", user_id="int64", ad_id="int64", ts="int64")
    impressions = Stream(
        "impressions",
        key="user_id",
        time="ts",
        columns={**event, "device": "string", "position": "int32", "site": "string"},
    )
    clicks = Stream("clicks", key="user_id", time="ts", columns={**event, "image_id": "int64"})
    users = Table("users", key="user_id", columns=dict(user_id="int64", age="int32", city="string"))
    ads = Table(
        "ads",
        key="ad_id",
        columns=dict(ad_id="int64", category="int32", advertiser="int64", price="float32", image_id="int64"),
    )
    log = label_join(impressions, clicks, on="request_id", window="10m").lookup(users).lookup(ads)
    age = bucketize(users.age, [18, 25, 35, 50])
    return Pipeline(
        log,
        sparse=dict(
            user=log.user_id,
            ad=log.ad_id,
            category=ads.category,
            advertiser=ads.advertiser,
            age=age,
            city=users.city,
            device=log.device,
            site=log.site,
            position=log.position,
            hour=hour(log.ts),
            weekday=weekday(log.ts),
            age_x_category=cross(age, ads.category),
            behaviors=Field(recent(clicks.ad_id, n=BEHAVIORS, within="14d"), table="ad"),
            image=ads.image_id,
            clicked_images=Field(recent(clicks.image_id, n=BEHAVIORS, within="14d"), table="image"),
        ),
        dense=dict(price=log1p(clip(ads.price, 0, None))),
        rank=model("ad", images=images),
        content={"images": Content(("image", "clicked_images"), EmbeddingModel(WIDTH))},
        items=ads,
    )
