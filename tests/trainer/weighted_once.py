"""One trainer of examples with weights and rates, for tests that kill it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from livectr.ingest.operators import where
from livectr.ingest.pipeline import Pipeline
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import without_users


def weighted_ads(**changes: Any) -> Pipeline:
    """Ad pipeline whose weight is a column of a look-up, and whose rate depends on the ad."""
    whole = without_users()
    price = whole.dense["price"]
    rate = where(whole.log.ad_id % 2 == 0, 0.5, 1.0)
    return replace(whole, **{"weight": price, "sampling": rate, **changes})


def main(options: str) -> None:
    """Train; the options are JSON."""
    train(weighted_ads(), TrainOptions(**json.loads(options)))
