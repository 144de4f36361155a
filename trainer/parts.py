"""Parts of one rank of a training run, as trainer.build assembles them.

trainer.stages moves batches through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.comm.control import Control
from livectr.trainer.content.contents import Contents
from livectr.trainer.des.step import DesStep
from livectr.trainer.holds import Holds
from livectr.trainer.learner import Learner
from livectr.trainer.options import TrainOptions
from livectr.trainer.part import Part
from livectr.trainer.progress import Progress
from livectr.trainer.publish.snapshot import Snapshotter
from livectr.trainer.quality.calibrator import Calibrator
from livectr.trainer.quality.evaluation import Evaluation
from livectr.trainer.quality.hedger import Hedger
from livectr.trainer.quality.monitor import Monitor
from livectr.trainer.quality.predictions import PredictionLog
from livectr.trainer.quality.run_record import RunRecord
from livectr.trainer.stream.batcher import Batcher
from livectr.trainer.stream.rank_stream import RankStream

if TYPE_CHECKING:
    from livectr.trainer.publish.publisher import Publisher


@dataclass(frozen=True)
class Parts:
    """Parts of one rank's run.

    Attributes:
        stream: rows, examples and features; `cuts` are its batches.
        learners: of the main model, and of the heads of ES-DFM if the pipeline's loss has some.
        each: parts with a state, measures or lines of the report, in order (trainer.part).
        evaluation: of rank 0.
        log: predictions; of rank 0, if they are kept.
        record: writes the run log; of rank 0, if there is one.
        calibrator: of rank 0, if the pipeline is calibrated.
        hedger: of rank 0, if the ranking model is a hedge.
        checkpoint, publisher: None if the run has no place for them.
        snapshots: copies versions, as of this run's start; None: nothing is published.
    """

    pipeline: Pipeline
    options: TrainOptions
    control: Control
    contents: Contents
    stream: RankStream
    cuts: Batcher
    learners: Sequence[Learner]
    progress: Progress
    each: Sequence[Part]
    evaluation: Evaluation | None
    log: PredictionLog | None
    record: RunRecord | None
    monitor: Monitor
    calibrator: Calibrator | None
    hedger: Hedger | None
    holds: Holds
    checkpoint: Checkpointer | None
    publisher: Publisher | None
    snapshots: Snapshotter | None

    @property
    def step(self) -> DesStep:
        """Step of the main model."""
        return self.learners[0].step

    @property
    def tables(self) -> dict[str, DynamicTable]:
        """This rank's tables, by their names in a checkpoint."""
        return {name: table for learner in self.learners for name, table in learner.tables.items()}

    @property
    def unpublished(self) -> dict[str, DynamicTable]:
        """Tables that no version holds, by their names in a checkpoint."""
        return {name: table for learner in self.learners[1:] for name, table in learner.tables.items()}
