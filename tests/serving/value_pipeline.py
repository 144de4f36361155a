"""The display pipeline with a target, and a value of clicks and orders."""

from __future__ import annotations

from dataclasses import replace

from livectr.ingest.language.value import probability
from tests.serving import display_pipeline, targets_pipeline

value = display_pipeline.ads.price * probability("click") + 5 * probability("order")
pipeline = replace(targets_pipeline.pipeline, value=value)
