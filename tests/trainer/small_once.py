"""One trainer of small batches for tests that kill it."""

import json
import os
import signal
from typing import Any

from livectr.trainer.run import TrainOptions, train
from livectr.trainer.stages import Learned, LearnStage
from tests.trainer.ad_logs import without_users


def main(options: str, dies_at: str) -> None:
    """Train; die when a batch of so many examples or more (0: never) has been learned, before it counts."""
    most = int(dies_at)
    learn = LearnStage.__call__

    def then_die(self: LearnStage, ready: Any) -> Learned | None:
        learned = learn(self, ready)
        if learned is not None and most and len(learned.result.label) >= most:
            os.kill(os.getpid(), signal.SIGKILL)
        return learned

    LearnStage.__call__ = then_die  # type: ignore[method-assign]
    train(without_users(), TrainOptions(**json.loads(options)))
