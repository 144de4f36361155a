"""One trainer process for tests that kill it, also as a rank.

train_once.py OPTIONS TOPIC_PREFIX [TABLE_POLICY [DELAYED [changing]]]
"""

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from livectr.kernels.process.heap import loading

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]


def main(options: str, prefix: str, policy: str = "null", delayed: Any = "wait", changing: str = "") -> int:
    """Train the ad pipeline; the options and the policy of all tables are JSON."""
    with loading():
        from livectr.ingest.language.policies import TablePolicy
        from livectr.kernels.errors import UserError
        from livectr.trainer.run import TrainOptions, train
        from tests.trainer.ad_logs import ad_pipeline

    try:
        settings = json.loads(policy)
        pipeline = replace(
            ad_pipeline(prefix, delayed, changing=changing == "changing"),
            policies=TablePolicy(**settings) if settings else None,
        )
        train(pipeline, TrainOptions(**json.loads(options)))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    sys.exit(main(*sys.argv[1:]))
