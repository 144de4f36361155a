"""Another pipeline over the simulator's logs: what a colleague might start on the same namespace."""

from livectr.ingest.language.streams import Stream, label_join
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR

impressions = Stream(
    "impressions",
    key="user_id",
    time="ts",
    columns={"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"},
)
clicks = Stream(
    "clicks",
    key="user_id",
    time="ts",
    columns={"request_id": "int64", "user_id": "int64", "ad_id": "int64", "ts": "int64"},
)
log = label_join(impressions, clicks, on="request_id", window="2s")
pipeline = Pipeline(log, sparse={"user": log.user_id, "ad": log.ad_id}, rank=LR())
