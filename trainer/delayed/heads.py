"""Heads of ES-DFM: a second step beside the main model's, with tables of its own (models.es_dfm).

    batch ─┬─ all rows, finals too ─► heads: score, then learn ─────────────► logits ─┐ weights
           └─ without finals ───────► main model: score, then learn ◄────────────────┘

The heads' rows are in tables of their own, so finals move no row of the main model, and a version, which is
made of the main model's tables and networks, holds nothing of the heads. Checkpoints hold them under names
that begin with `PREFIX`. The heads' rows are in host memory, with the policies of the main tables: a budget
of rows or bytes counts for each of the two.
"""

from __future__ import annotations

import numpy as np
import torch

from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.join import FINAL_NEGATIVE
from livectr.models.es_dfm import HEADS, importance_weighted, lessons_of_heads
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
        self.step.start_from({}, trained=True)  # the first batch has no finals to take a bias from
        self.learner = Learner.of(pipeline, self.step, PREFIX)

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Send keys of a batch, its finals too, to their ranks. Collective."""
        return self.step.prepare(batch.features, np.zeros(len(batch.label), np.float32), batch.sequence)

    def learn(self, prepared: PreparedBatch, batch: Batch) -> Lesson:
        """Score a batch, and then learn it. Collective.

        Returns:
            Lesson of the batch without its finals, of all ranks' examples, rank-major.
        """
        outcome = torch.from_numpy(batch.outcome.astype(np.float32))
        logits = self.learner.learn(prepared, batch.time_ms, lessons_of_heads(outcome)).logits
        stays = outcome < FINAL_NEGATIVE
        clicked, in_time = (torch.from_numpy(logits[name])[stays] for name in ("clicked", "in_time"))
        return importance_weighted(outcome[stays], clicked, in_time)
