"""Answers of a rank server for its served log, and the count of those it wrote."""

from __future__ import annotations

import numpy as np

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.plan.features import Features
from livectr.serving.served.record import Answer
from tests.metrics_page import metric_value
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World


def written() -> float:
    return metric_value("livectr_served_log_records_total")


def answer(world: World, request_id: str, count: int = 1) -> Answer:
    """An answer of `count` equal candidates, none of whose fields is shared."""
    nothing = Features(1, np.zeros(1, np.int32), np.empty(0, np.int64), np.empty((1, 0), np.float32))
    own = world.extract(world.columns(3, [100] * count, [0] * count))
    features = SharedFeatures(nothing, own, (), tuple(range(len(pipeline.fields))))
    candidates = {"ad_id": [100] * count}
    return Answer("rank", request_id, 1, "m", NOW_MS, {}, candidates, (), np.full(count, 0.25), features)
