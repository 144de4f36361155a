"""One trainer of test_contest.py."""

import json

from livectr.trainer.run import TrainOptions, train
from tests.trainer.planted_log import CALIBRATION, contest_pipeline


def main(options: str) -> None:
    """Train the pipeline of a contest, calibrated by field C4; the options are JSON."""
    train(contest_pipeline(calibration=CALIBRATION), TrainOptions(**json.loads(options)))
