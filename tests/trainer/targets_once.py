"""One trainer of targets beside the click, for tests that kill it."""

from __future__ import annotations

import json
from dataclasses import replace

from livectr.ingest.language.targets import Target
from livectr.ingest.pipeline import Pipeline
from livectr.trainer.run import TrainOptions, train
from tests.trainer.weighted_once import weighted_ads


def targets_of_ads() -> Pipeline:
    """Weighted ad pipeline; a target is planted in the ads' ids, and one in the requests' as well."""
    whole = weighted_ads()
    log = whole.log
    order, seen = (log.ad_id % 3 == 0) & (log.request_id % 2 == 0), log.ad_id % 5 == 1
    return replace(whole, targets=[Target("order", order, after="click"), Target("seen", seen)])


def main(options: str) -> None:
    """Train; the options are JSON."""
    train(targets_of_ads(), TrainOptions(**json.loads(options)))
