"""One trainer of small batches for tests that kill it."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from livectr.trainer.run import TrainOptions, train
from livectr.trainer.stages import Learned, LearnStage
from tests.trainer.ad_logs import without_users
from tests.trainer.short_logs import constants


def main(options: str, dies_at: str) -> None:
    """Train; die when a batch of so many examples or more (0: never) has been learned, before it counts.

    Its block may hold more batches.
    """
    most = int(dies_at)

    def then_die(learn: Callable[..., Learned | None]) -> Callable[..., Learned | None]:
        def learned(self: LearnStage, batch: Any) -> Learned | None:
            found = learn(self, batch)
            if found is not None and most and _size(found) >= most:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return learned

    LearnStage.__call__ = then_die(LearnStage.__call__)  # type: ignore[method-assign]
    LearnStage.block = then_die(LearnStage.block)  # type: ignore[method-assign]
    given = json.loads(options)
    with constants(slope=given.pop("slope")):
        train(without_users(), TrainOptions(**given))


def _size(learned: Learned) -> int:
    """Examples of a batch, or of the largest batch of a block."""
    bounds = learned.batch.bounds
    return len(learned.result.label) if bounds is None else int(max(bounds[1:] - bounds[:-1]))
