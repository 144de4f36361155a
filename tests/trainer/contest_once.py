"""One trainer process of test_contest.py, also as a rank: contest_once.py OPTIONS"""

import json
import logging
import sys
from pathlib import Path

from livectr.kernels.process.heap import loading

sys.path[:0] = [str(Path(__file__).parents[2])]


def main(options: str) -> None:
    """Train the pipeline of a contest; the options are JSON."""
    with loading():
        from livectr.trainer.run import TrainOptions, train
        from tests.trainer.planted_log import contest_pipeline

    train(contest_pipeline(), TrainOptions(**json.loads(options)))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    main(*sys.argv[1:])
