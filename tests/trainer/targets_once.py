"""One trainer of targets beside the click, for tests that kill it."""

from __future__ import annotations

import json
from dataclasses import replace

from livectr.ingest.language.targets import Target
from livectr.ingest.language.value import probability
from livectr.ingest.pipeline import Pipeline
from livectr.trainer.run import TrainOptions, train
from tests.trainer.weighted_once import weighted_ads


def targets_of_ads() -> Pipeline:
    """Weighted ad pipeline with a value; targets are planted in the ids of ads, and of requests."""
    whole = weighted_ads()
    log = whole.log
    order, seen = (log.ad_id % 3 == 0) & (log.request_id % 2 == 0), log.ad_id % 5 == 1
    assert whole.items is not None
    value = whole.items.price * probability("click") + 3 * probability("order")
    targets = [Target("order", order, after="click"), Target("seen", seen)]
    return replace(whole, targets=targets, value=value)


def main(options: str) -> None:
    """Train; the options are JSON."""
    train(targets_of_ads(), TrainOptions(**json.loads(options)))
