"""Two fields and a first-order model: a pipeline whose logit shows which version each part came from."""

from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR

impressions = Stream(
    "impressions", key="user_id", columns={"user_id": "int64", "ad_id": "int64", "label": "int64"}
)
log = labelled(impressions, label="label")
pipeline = Pipeline(log, sparse={"user": log.user_id, "ad": log.ad_id}, rank=LR())
