"""The pipeline that the serving benchmark serves: the view of `bench.features`, with both models."""

from dataclasses import replace

from bench.features import display_ads
from livectr.models import DeepFM, TwoTower

pipeline = replace(
    display_ads(),
    rank=DeepFM(dim=16, hidden=(256, 128)),
    prerank=TwoTower(
        user=("user", "age", "city", "device", "site", "hour", "weekday", "words", "behaviors"),
        item=("ad", "category", "advertiser", "price"),
        dim=16,
        hidden=(128,),
        out=32,
    ),
)
