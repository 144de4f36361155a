"""The display pipeline with a hedge that ranks, calibrated by a field of the item."""

from __future__ import annotations

from dataclasses import replace

from livectr.ingest.language.calibration import Calibration
from livectr.models import LR, DeepFM, Hedge
from tests.serving import display_pipeline

pipeline = replace(
    display_pipeline.pipeline,
    rank=Hedge((LR(), DeepFM(dim=8, hidden=(32, 16))), window=500),
    calibration=Calibration(by="category", window_clicks=100),
)
