"""Heads of ES-DFM: a second step beside the main model's, with tables of its own (models.es_dfm).

    batch, with its finals ─┬─► heads: score, then learn ─► logits ─► lessons ─┐
                            └─► main model: score, then learn ◄────────────────┘

The heads' rows are in tables of their own: a version, which is made of the main model's tables and networks,
holds nothing of the heads. Checkpoints hold them under names that begin with `PREFIX`. The heads' rows are in
host memory, with the policies of the main tables: a budget of rows or bytes counts for each of the two.
"""

from __future__ import annotations

import numpy as np
import torch

from livectr.ingest.pipeline import Pipeline
from livectr.models.es_dfm import HEADS, expected_labels, lessons_of_heads
from livectr.models.losses import Lesson
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.step import DesStep
from livectr.trainer.learner import Learner
from livectr.trainer.stream.feed import Batch

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
        outcome = torch.from_numpy(batch.outcome.astype(np.float32))
        logits = self.learner.learn(prepared, batch.time_ms, lambda _: lessons_of_heads(outcome)).logits
        clicked, in_time = (torch.from_numpy(logits[name]) for name in ("clicked", "in_time"))
        return expected_labels(outcome, clicked, in_time)
