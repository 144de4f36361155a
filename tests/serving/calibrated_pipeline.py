"""The display pipeline, calibrated by a field of the item."""

from __future__ import annotations

from dataclasses import replace

from livectr.ingest.language.calibration import Calibration
from tests.serving import display_pipeline

pipeline = replace(display_pipeline.pipeline, calibration=Calibration(by="category", window_clicks=100))
