"""The display pipeline with targets, and a value of clicks, orders, and of what is seen."""

from __future__ import annotations

from dataclasses import replace

from livectr.ingest.language.value import expected_value, probability
from tests.serving import display_pipeline, targets_pipeline

value = (
    display_pipeline.ads.price * probability("click")
    + 5 * probability("order")
    + 0.5 * probability("seen") * expected_value("seen")
)
pipeline = replace(targets_pipeline.pipeline, value=value)
