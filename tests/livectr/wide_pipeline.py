"""Click logs of many users and ads, whose rows a test lets outgrow its memory."""

from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import cross
from livectr.ingest.pipeline import Pipeline
from livectr.models import DeepFM, TwoTower

EVENT = {"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"}
impressions = Stream("impressions", key="user_id", time="ts", columns=EVENT)
clicks = Stream("clicks", key="user_id", time="ts", columns=EVENT)
ads = Table("ads", key="ad_id", columns={"ad_id": "int64", "category": "int64"})
log = label_join(impressions, clicks, on="request_id", window="1s").lookup(ads)
pipeline = Pipeline(
    log,
    sparse=dict(
        user=log.user_id,
        ad=log.ad_id,
        category=ads.category,
        pair=cross(log.user_id, log.ad_id),
        behaviors=recent(clicks.ad_id, n=5, within="1h"),
    ),
    rank=DeepFM(dim=4, hidden=(8,)),
    prerank=TwoTower(user=("user", "behaviors"), item=("ad", "category"), dim=4, hidden=(8,), out=4),
    items=ads,
)
