"""Blocks of small batches, learned in one compiled call with the bits of a step for each batch.

A step of a few examples is arithmetic of some microseconds and Python around it of hundreds. Where one rank
holds all rows and its networks are compiled (`trainer.des.small_batch`), the batches of a block
(`trainer.stream.batcher`) are learned one after the other by `kernels.network.small_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from livectr.ingest.plan.features import Features
from livectr.kernels.network.small_steps import Block, Lessons, OpenBlock, RoleRates, SmallRole, SmallSteps
from livectr.kernels.table.rows import optimiser
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.online import OnlineOrders
from livectr.trainer.des.routed import Routed
from livectr.trainer.des.small_batch import MOST, SmallBatches
from livectr.trainer.des.spec import StepSpec

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

PRODUCTS = 300_000_000
"""Products of weights and examples in a block, some 50 ms: commits and signals wait for its end."""


@dataclass(frozen=True)
class SmallBlocks:
    """Steps of the blocks of a rank.

    Attributes:
        spec: of the step.
        dense: learns the networks otherwise.
        online: first and second orders.
        roles: in the order of the scores.
        steps: compiled steps.
    """

    spec: StepSpec
    dense: DenseAdam
    online: OnlineOrders
    roles: tuple[str, ...]
    steps: SmallSteps

    @staticmethod
    def of(
        spec: StepSpec, routed: Routed, small: SmallBatches | None, online: OnlineOrders
    ) -> SmallBlocks | None:
        """Steps of a rank; None: its batches are learned one by one."""
        if small is None or small.others is not None or spec.placement.world > 1 or not spec.fields:
            return None
        roles = []
        for role, network in small.networks.items():
            names = (None if segment is None else segment.name for segment in online.segments(role))
            roles.append(SmallRole(network, small.starts[role], *names))
        steps = SmallSteps(
            routed.reading.host,
            online.by_table,
            roles,
            dense=len(spec.dense_names),
            most=MOST,
            online=min(MOST, spec.settings.online),
        )
        return SmallBlocks(spec, routed.dense, online, tuple(small.networks), steps)

    @property
    def most(self) -> int:
        """Number of examples that a block may have."""
        return max(MOST, PRODUCTS // self.steps.weights)

    def constant(self, parts: int) -> bool:
        """Tell if the learning rates are the same in the next `parts` steps."""
        first, last = self.dense.steps, self.dense.steps + parts - 1
        schedules = [config.schedule for config in self.spec.configs.values()]
        return all(schedule.factor(first) == schedule.factor(last) for schedule in schedules)

    def open(self, features: Features, label: F32, bounds: I64, logits: F32) -> OpenBlock:
        """Make a block ready to be learned, whose steps have the same rates (`constant`).

        Args:
            features: n examples, not grouped.
            label: f32[n], targets in [0, 1]; above 1 is 1.
            bounds: int64[P + 1], of the batches.
            logits: f32[R, n], gets the scores of `roles`.
        """
        block = Block(bounds, features.offsets, features.keys, features.dense, label)
        return self.steps.open(block, [self._rates(role) for role in self.roles], logits)

    def learn(self, block: OpenBlock, part: int) -> tuple[int, int]:
        """Learn batches of a block, up to one whose gradients are not finite: that is scored only.

        Args:
            block: from `open`.
            part: number of the first batch.

        Returns:
            Number of the batch that follows, and of batches that were learned.
        """
        following, learned = block.learn(part, self.dense.steps)
        self.dense.updated(learned)
        return following, learned

    def teach(self, block: OpenBlock, part: int, lessons: Lessons) -> bool:
        """Learn the batch of a block that `OpenBlock.score` has read; False: gradients are not finite."""
        learned = block.teach(part, lessons, self.dense.steps)
        if learned:
            self.dense.updated()
        return learned

    def _rates(self, role: str) -> RoleRates:
        factor = self.spec.configs[role].schedule.factor(self.dense.steps)
        rates, segments = self.dense.rates(role), self.online.segments(role)
        return RoleRates(
            rates["network"],
            rates["bias"],
            rates["scale"],
            DenseAdam.SCALE_RATE,
            rates["number"],
            *(() if s is None else optimiser(s.optimiser).hyper(factor) for s in segments),
        )
