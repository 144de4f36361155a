"""Learner: a step with the policies of its tables, and their share of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from livectr.ingest.common_features import AnyFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.result import StepResult
from livectr.trainer.des.step import F32, DesStep, Teach, TeachPart
from livectr.trainer.tables.policies import I64, Policies, State

T = TypeVar("T")


@dataclass(frozen=True)
class Learner:
    """Step of one rank between its table policies.

    Attributes:
        prefix: begin of its names in a checkpoint.
    """

    step: DesStep
    policies: Policies
    prefix: str = ""

    @staticmethod
    def of(pipeline: Pipeline, step: DesStep, prefix: str = "") -> Learner:
        """Learner with the pipeline's policies. Raises ConfigError; see `Policies`."""
        policies = Policies(
            step.tables,
            pipeline.table_policies,
            timed=pipeline.log.impressions.time is not None,
            erase=step.storage.erase,
            rank=step.rank,
            parts=dict.fromkeys(step.spec.placement.split, step.spec.placement.world),
        )
        return Learner(step, policies, prefix)

    def learn(self, prepared: PreparedBatch, time_ms: I64, teach: Teach | None = None) -> StepResult:
        """Admit keys, score and learn a batch, then expire and evict rows. Collective.

        Args:
            prepared: see `DesStep.learn`.
            teach: see `DesStep.learn`.
            time_ms: int64[B], event times of the global batch.
        """
        self.policies.before(time_ms)
        result = self.step.learn(prepared, teach)
        self.policies.after()
        return result

    def takes_block(self, features: AnyFeatures, bounds: I64) -> bool:
        """Tell if `learn_block` learns these; False: `learn` has to learn each batch.

        Args:
            features: see `DesStep.learn_block`.
            bounds: see `DesStep.learn_block`.
        """
        return not self.policies and self.step.takes_block(features, bounds)

    def learn_block(
        self, features: AnyFeatures, label: F32, bounds: I64, teach: TeachPart | None = None
    ) -> StepResult | None:
        """Score and learn the batches of a block by compiled calls; None: `learn` has to learn each.

        Args:
            features: see `DesStep.learn_block`.
            label: see `DesStep.learn_block`.
            bounds: see `DesStep.learn_block`.
            teach: see `DesStep.learn_block`.
        """
        return None if self.policies else self.step.learn_block(features, label, bounds, teach)

    # ── state for checkpoints, by names in it ──

    @property
    def tables(self) -> dict[str, DynamicTable]:
        """Host tables of this rank."""
        return self._named(self.step.tables)

    def dense(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer state; see `DesStep.state_dense`."""
        return self._named(self.step.state_dense())

    def replicated(self) -> dict[str, torch.Tensor]:
        """Parameters of which every rank has a copy."""
        return self._named(self.step.dense.replicated())

    def usage(self) -> State:
        """State of the table policies."""
        return self._named(self.policies.state())

    @property
    def tracked(self) -> frozenset[str]:
        """Tables whose rows' stamps and counts belong into a checkpoint."""
        return frozenset(self.prefix + name for name in self.policies.tracked)

    def load(self, restored: Restored) -> None:
        """Fill tables, policies and networks from a checkpoint. Collective."""
        placement = self.step.spec.placement
        split = [self.prefix + name for name in placement.split]
        restored.load_tables(self.tables, split, rank=self.step.rank, world=placement.world)
        self.step.storage.drop()
        self.policies.load([self._own(state) for state in restored.policies()])
        self.step.load_dense(self._own(restored.dense()))

    def _named(self, own: Mapping[str, T]) -> dict[str, T]:
        return {self.prefix + name: value for name, value in own.items()}

    def _own(self, named: Mapping[str, T]) -> dict[str, T]:
        own = (name for name in named if name.startswith(self.prefix))
        return {name.removeprefix(self.prefix): named[name] for name in own}
