"""One trainer process for tests that kill it: `train_once.py OPTIONS TOPIC_PREFIX`, also under torchrun."""

import json
import logging
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]


def main(options: str, prefix: str) -> int:
    """Train the ad pipeline; the options are JSON."""
    from kernels.errors import UserError
    from tests.trainer.ad_logs import ad_pipeline
    from trainer.run import TrainOptions, train

    try:
        train(ad_pipeline(prefix), TrainOptions(**json.loads(options)))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    sys.exit(main(*sys.argv[1:]))
