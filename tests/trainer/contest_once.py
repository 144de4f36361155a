"""One trainer of test_contest.py."""

import json

from livectr.trainer.run import TrainOptions, train
from tests.trainer.planted_log import contest_pipeline


def main(options: str) -> None:
    """Train the pipeline of a contest; the options are JSON."""
    train(contest_pipeline(), TrainOptions(**json.loads(options)))
