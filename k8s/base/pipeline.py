"""Display ads with images: raw impressions and clicks, users and ads as look-up tables, the ads' pictures.

`livectr demo` runs this file. The logs are those of `livectr logs simulate`. A click counts when it comes
within 2 seconds: a simulated minute stands for hours. For real logs take a window like "30m".
"""

from dataclasses import replace

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
        "page": "string",
        "query": "string",
        "context": "string",
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
pictures = Table("ad_images", key="image_id", columns={"image_id": "int64", "image": "image"})

log = label_join(impressions, clicks, on="request_id", window="2s").lookup(users).lookup(ads)

# Who
years = ops.bucketize(users.age, [18, 25, 35, 45, 60])
segment = ops.cross(years, users.gender)
clicked = recent(clicks.ad_id, n=20, within="14d")
clicked_images = recent(clicks.image_id, n=20, within="14d")
clicked_at = recent(clicks.ts, n=20, within="14d")
dwell_ms = recent(clicks.dwell_ms, n=20, within="14d")
since_click_s = ops.age(log.ts, ops.item(clicked_at, -1), unit="s")

# What
title = ops.lower(ads.title)
title_words = ops.split(title, " ")
DEPARTMENTS = {
    "books": "media", "games": "media", "electronics": "media", "cars": "mobility", "travel": "mobility",
    "cosmetics": "style", "fashion": "style", "food": "home", "garden": "home", "toys": "home",
}  # fmt: skip
department = ops.lookup(ads.category, DEPARTMENTS, default="other")
OFFERS = ("sale", "free", "new", "best", "mini", "mega")

# Where
device = ops.json_field(log.context, "device.os", "string")
app = ops.json_field(log.context, "app", "string")

# The query, and how near the title is to it
query = ops.lower(ops.trim(log.query))
query_words = ops.split(query, " ")
nearest_word = ops.smallest(ops.edit_distance(title_words, ops.item(query_words, 0)))

# The picture: 128 numbers of each, which a small network turns into 12 (DICM §5.1).
images = Content(
    fields=("image", "clicked_images"),
    model=EmbeddingModel(width=128, hidden=(32,), out=12),
    topic=pictures,
    encoder="small",
)
dicm = DICM(
    ad_image="image",
    behavior_images="clicked_images",
    ad="ad",
    basic="wide_deep",
    dim=8,
    hidden=(64, 32),
    aggregator="multi_query_attentive",
    attention=(16, 8),
    optimiser=adagrad(lr=0.01),
    dense_lr=3e-3,
)

pipeline = Pipeline(
    log,
    sparse={
        "user": log.user_id,
        "age": years,
        "gender": users.gender,
        "segment": segment,
        "city": users.city,
        "ad": log.ad_id,
        "image": ads.image_id,
        "category": ads.category,
        "department": department,
        "advertiser": ads.advertiser,
        "price_band": ops.bucketize(ads.price, [2, 5, 10, 20, 50, 100, 200]),
        "title_words": title_words,
        "offers": ops.keywords(title, OFFERS),
        "device": device,
        "app": app,
        "app_major": ops.substring(app, 0, 1),
        "position": log.position,
        "page": log.page,
        "hour": ops.hour(log.ts),
        "weekday": ops.weekday(log.ts),
        "query_words": query_words,
        "query_x_title": ops.cross(query_words, title_words),
        "clicked": clicked,
        "clicked_images": Field(clicked_images, table="image"),
        "gender_x_category": ops.cross(users.gender, ads.category),
        "age_x_category": ops.cross(years, ads.category),
        "segment_x_category": ops.cross(years, users.gender, ads.category),
        "segment_x_ad": ops.cross(segment, log.ad_id),
        "segment_x_advertiser": ops.cross(segment, ads.advertiser),
        "gender_x_ad": ops.cross(users.gender, log.ad_id),
        "age_x_ad": ops.cross(years, log.ad_id),
        "user_x_category": ops.cross(log.user_id, ads.category),
        "place": ops.cross(device, log.page, log.position),
    },
    dense={
        "price": ops.zscore(ops.log1p(ads.price)),
        "activity": ops.log1p(ops.length(clicked)),
        "variety": ops.log1p(ops.length(ops.unique(clicked))),
        "since_click": ops.zscore(ops.log1p(ops.clip(since_click_s, 0, 3600))),
        "dwell": ops.zscore(ops.log1p(ops.mean(dwell_ms))),
        "clicked_before": ops.count_of(clicked, log.ad_id),
        "title_length": ops.zscore(ops.clip(ops.length(title), 0, 256)),
        "query_length": ops.clip(ops.length(query_words), 0, 16),
        "nearest_word": nearest_word,
        "relevance": ops.token_overlap(query_words, title_words),
        "ad_seen": ops.zscore(ops.log1p(ops.frequency(log.ad_id, width=1 << 13))),
        "user_seen": ops.zscore(ops.log1p(ops.frequency(log.user_id, width=1 << 13))),
    },
    content={"images": images},
    rank=dicm,
    shadows={"without_images": replace(dicm, images="none")},
    prerank=TwoTower(
        user=("user", "age", "gender", "segment", "city", "device", "clicked"),
        item=("ad", "category", "advertiser", "title_words", "price_band"),
        user_images=("clicked_images",),
        item_images=("image",),
        dim=8,
        hidden=(32,),
        out=16,
        optimiser=adagrad(lr=0.02),
    ),
    items=ads,
    settings={"batch_size": 2048, "batch_ramp": 0, "batch_interval_ms": "500ms", "publish_interval_s": "2s"},
)
