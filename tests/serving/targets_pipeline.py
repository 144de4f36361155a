"""The display pipeline with targets beside the click, calibrated by a field of the item."""

from __future__ import annotations

from dataclasses import replace

from livectr import ops
from livectr.ingest.language.calibration import Calibration
from livectr.ingest.language.targets import Target
from livectr.models import DeepFM
from tests.serving import display_pipeline

log, ads = display_pipeline.pipeline.log, display_pipeline.ads
pipeline = replace(
    display_pipeline.pipeline,
    rank=DeepFM(dim=8, hidden=(32, 16)),
    calibration=Calibration(by="category", window_clicks=100),
    targets=[
        Target("order", log.position == 1, after="click", value=ads.price + 1),
        Target("seen", log.position < 3, value=ops.clip(log.position, 0, 9), values="ziln"),
    ],
)
