"""One trainer of counters, for tests that kill it."""

from __future__ import annotations

import json
from dataclasses import replace

from livectr.ingest.operators.ages import ages
from livectr.ingest.operators.counts import counts
from livectr.ingest.pipeline import Pipeline
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import without_users


def counting_ads() -> Pipeline:
    """Ad pipeline with counters of ads, and of users on ads, and ages of these, which do not all fit."""
    whole = without_users()
    of_ads = counts(whole.log, by="ad_id", over=("6s", "20s"))
    of_pairs = counts(whole.log, by=("user_id", "ad_id"), over="5s", max_bytes=40_000)
    seen = ages(whole.log, by=("user_id", "ad_id"), within="20s", max_bytes=20_000)
    dense = {**whole.dense, **of_ads.features("ad"), **of_pairs.features("pair"), **seen.features("seen")}
    return replace(whole, dense=dense)


def main(options: str) -> None:
    """Train; the options are JSON."""
    train(counting_ads(), TrainOptions(**json.loads(options)))
