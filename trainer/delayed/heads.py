"""Heads of ES-DFM: a second step beside the main model's, with tables of its own (models.es_dfm).

    batch, with its finals ─┬─► heads: score, then learn ─► logits ─► lessons ─┐
                            └─► main model: score, then learn ◄────────────────┘

The heads' rows are in tables of their own: a version, which is made of the main model's tables and networks,
holds nothing of the heads. Checkpoints hold them under names that begin with `PREFIX`. The heads' rows are in
host memory, with the policies of the main tables: a budget of rows or bytes counts for each of the two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.ingest.pipeline import Pipeline
from livectr.models.es_dfm import HEADS, expected_labels, lessons_of_heads
from livectr.models.losses import Lesson
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.step import DesStep
from livectr.trainer.learner import Learner
from livectr.trainer.stream.feed import Batch

I64 = NDArray[np.int64]

PREFIX = "es_dfm."
"""Begin of the heads' names in a checkpoint."""


class Heads:
    """Heads of one rank.

    Args:
        pipeline: fields and table policies.
        main: step of the main model, whose seed, ranks, settings and placement the heads share.

    Attributes:
        step: of the heads alone.
        learner: of this step, under names with `PREFIX`.
    """

    def __init__(self, pipeline: Pipeline, main: DesStep) -> None:
        self.step = DesStep(
            pipeline,
            seed=main.spec.seed,
            collectives=main.collectives,
            settings=main.spec.settings,
            placement=main.spec.placement,
            models=HEADS,
        )
        self.learner = Learner.of(pipeline, self.step, PREFIX)

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Send keys of a batch, its finals too, to their ranks. Collective."""
        return self.step.prepare(batch.features, batch.clicked, batch.sequence)

    def learn(self, prepared: PreparedBatch, batch: Batch) -> Lesson:
        """Score a batch, and then learn it. Collective.

        Returns:
            Lesson of the batch for the main model, of all ranks' rows, rank-major.
        """
        outcome = _outcome(batch)
        logits = self.learner.learn(prepared, batch.time_ms, lambda _: lessons_of_heads(outcome)).logits
        clicked, in_time = (torch.from_numpy(logits[name]) for name in ("clicked", "in_time"))
        return expected_labels(outcome, clicked, in_time)

    def learn_block(self, batch: Batch, bounds: I64) -> Callable[[slice], Lesson]:
        """`learn` of the batches of a block, which the learner takes.

        Args:
            batch: the block.
            bounds: of its batches.

        Returns:
            Function of the slice of a batch's rows, which gives the lesson for the main model.
        """
        outcome = _outcome(batch)
        result = self.learner.learn_block(
            batch.features, batch.clicked, bounds, lambda _, rows: lessons_of_heads(outcome[rows])
        )
        assert result is not None, "the learner takes it"
        clicked, in_time = (torch.from_numpy(result.logits[name]) for name in ("clicked", "in_time"))
        return lambda rows: expected_labels(outcome[rows], clicked[rows], in_time[rows])


def _outcome(batch: Batch) -> torch.Tensor:
    return torch.from_numpy(batch.outcome.astype(np.float32))
