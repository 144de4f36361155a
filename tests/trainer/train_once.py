"""One trainer for tests that kill it."""

import json
import sys
from dataclasses import replace
from typing import Any

from livectr.ingest.language.policies import TablePolicy
from livectr.system.errors import UserError
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import ad_pipeline


def main(options: str, prefix: str, policy: str = "null", delayed: Any = "wait", changing: str = "") -> int:
    """Train the ad pipeline; the options and the policy of all tables are JSON. Returns an exit code."""
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
