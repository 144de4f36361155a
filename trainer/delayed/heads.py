"""Heads of ES-DFM: a second step beside the main model's, with tables of its own (models.es_dfm).

    batch ─┬─ all rows, finals too ─► heads: score, then learn ─────────────► logits ─┐ weights
           └─ without finals ───────► main model: score, then learn ◄────────────────┘

The heads' rows are in tables of their own, so finals move no row of the main model, and a version, which is
made of the main model's tables and networks, holds nothing of the heads. Checkpoints hold them under names
that begin with `PREFIX`. The heads' rows are in host memory, with the policies of the main tables: a budget
of rows or bytes counts for each of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch

from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.join import FINAL_NEGATIVE
from livectr.kernels.table.table import DynamicTable
from livectr.models.es_dfm import HEADS, importance_weighted, lessons_of_heads
from livectr.models.losses import Lesson
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.step import DesStep
from livectr.trainer.stream.feed import Batch
from livectr.trainer.tables.policies import Policies, State

T = TypeVar("T")
PREFIX = "es_dfm."
"""Begin of the heads' names in a checkpoint."""


class Heads:
    """Heads of one rank.

    Args:
        pipeline: fields and table policies.
        main: step of the main model, whose seed, ranks, settings and placement the heads share.

    Attributes:
        step: of the heads alone.
        tables: name in a checkpoint → host table of this rank.
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
        self.tables: dict[str, DynamicTable] = _prefixed(self.step.tables)
        self._policies = Policies(
            self.step.tables,
            pipeline.table_policies,
            timed=pipeline.log.impressions.time is not None,
            erase=self.step.storage.erase,
            rank=main.rank,
            parts=dict.fromkeys(main.spec.placement.split, main.spec.placement.world),
        )

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Send keys of a batch, its finals too, to their ranks. Collective."""
        return self.step.prepare(batch.features, np.zeros(len(batch.label), np.float32), batch.sequence)

    def learn(self, prepared: PreparedBatch, batch: Batch) -> Lesson:
        """Score a batch, and then learn it. Collective.

        Returns:
            Lesson of the batch without its finals, of all ranks' examples, rank-major.
        """
        outcome = torch.from_numpy(batch.outcome.astype(np.float32))
        self._policies.before(batch.time_ms)
        logits = self.step.learn(prepared, lessons_of_heads(outcome)).logits
        self._policies.after()
        stays = outcome < FINAL_NEGATIVE
        clicked, in_time = (torch.from_numpy(logits[name])[stays] for name in ("clicked", "in_time"))
        return importance_weighted(outcome[stays], clicked, in_time)

    # ── state for checkpoints ──

    def state_dense(self) -> dict[str, torch.Tensor]:
        """Biases and their state, by names in a checkpoint; see `DesStep.state_dense`."""
        return _prefixed(self.step.state_dense())

    def policies(self) -> State:
        """State of the table policies, by names in a checkpoint."""
        return _prefixed(self._policies.state())

    @property
    def tracked(self) -> frozenset[str]:
        """Tables whose rows' stamps and counts belong into a checkpoint, by their names in it."""
        return frozenset(PREFIX + name for name in self._policies.tracked)

    def load(self, restored: Restored) -> None:
        """Fill tables, biases and policies from a checkpoint. Collective."""
        placement = self.step.spec.placement
        split = [PREFIX + name for name in placement.split]
        restored.load_tables(self.tables, split, rank=self.step.rank, world=placement.world)
        self._policies.load([_own(state) for state in restored.policies()])
        self.step.load_dense(_own(restored.dense()))


def _prefixed(named: Mapping[str, T]) -> dict[str, T]:
    return {PREFIX + name: value for name, value in named.items()}


def _own(named: Mapping[str, T]) -> dict[str, T]:
    return {name.removeprefix(PREFIX): value for name, value in named.items() if name.startswith(PREFIX)}
