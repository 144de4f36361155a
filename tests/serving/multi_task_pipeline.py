"""The display pipeline with targets beside the click, whose heads share rows and experts, and a position."""

from __future__ import annotations

from dataclasses import replace

from livectr.models import PLE
from tests.serving import targets_pipeline

pipeline = replace(
    targets_pipeline.pipeline,
    calibration=None,
    position_bias=targets_pipeline.log.position,
    rank=PLE(dim=8, hidden=(16, 8), tower=(4,), experts=1, shared_experts=2),
)
