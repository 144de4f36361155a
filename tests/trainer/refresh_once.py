"""One trainer of test_refresh_ranks.py: the pipeline with images of the serving tests."""

import json

from livectr.trainer.run import TrainOptions, train
from tests.serving.content_world import pipeline


def main(options: str) -> int:
    """Train; the options are JSON. Returns an exit code."""
    train(pipeline, TrainOptions(**json.loads(options)))
    return 0
