"""Rank whose copy of a network's parameter changes by a bit, as a memory fault does.

flipped_worker.py SOURCE FOLDER STEP: checkpoint and errors of ranks go into FOLDER; step 0: nothing changes.
"""

import os
from pathlib import Path

import torch

from livectr.system.errors import InternalError
from livectr.trainer.run import TrainOptions, train
from livectr.trainer.stages import Exchanged, Learned, LearnStage
from tests.trainer.ad_logs import ad_pipeline

PARAMETER = "rank.mlp.weights.0"


def main(source: str, to: str, step: str) -> None:
    """Train to the end of the log, or until an error."""
    folder, at = Path(to), int(step)
    rank = int(os.environ["RANK"])
    if rank == 1 and at:
        _flip_at(at)
    options = dict(source=source, checkpoint=str(folder / "checkpoint"), until_end=True)
    try:
        train(
            ad_pipeline(),
            TrainOptions(**options, batch_size=64, batch_ramp=0, publish_interval_s=0.001),  # type: ignore[arg-type]
        )
    except InternalError as error:
        (folder / f"rank-{rank}").write_text(str(error))


def _flip_at(at: int) -> None:
    learn, learned = LearnStage.__call__, []

    def flipping(self: LearnStage, ready: Exchanged | None) -> Learned | None:
        done = learn(self, ready)
        learned.extend([done] if done is not None else [])
        if len(learned) == at and done is not None:
            with torch.no_grad():
                self._main.step.dense.replicated()[PARAMETER].view(torch.int32).view(-1)[0] ^= 1
        return done

    LearnStage.__call__ = flipping  # type: ignore[method-assign]
