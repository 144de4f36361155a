"""One trainer for tests that kill it."""

import json
import sys
from dataclasses import replace
from typing import Any

from livectr.ingest.language.policies import TablePolicy
from livectr.system.errors import UserError
from livectr.trainer.ramp import SLOPE
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import ad_pipeline
from tests.trainer.short_logs import constants


def main(options: str, prefix: str, policy: str = "null", delayed: Any = "wait", changing: str = "") -> int:
    """Train the ad pipeline. Returns an exit code.

    Args:
        options: JSON; "slope" is that of the ramp.
        policy: of all tables, JSON.
    """
    try:
        settings = json.loads(policy)
        pipeline = replace(
            ad_pipeline(prefix, delayed, changing=changing == "changing"),
            policies=TablePolicy(**settings) if settings else None,
        )
        given = json.loads(options)
        with constants(slope=given.pop("slope", SLOPE)):
            train(pipeline, TrainOptions(**given))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0
