"""Our side of the contests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.workloads import Batch, Workload
from bench.planted import pipeline
from livectr.models import DeepFM
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.result import StepResult
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import StepSettings, Wire


@dataclass(frozen=True)
class Ours:
    """Settings of our side: floats on the wire, and settings of the step."""

    wire: Wire = "fp32"
    settings: StepSettings = StepSettings()

    def collectives(self, rank: int = 0, world: int = 1) -> Collectives:
        """A rank's."""
        return Collectives(rank, world, wire=self.wire)


OURS = {"fp32": Ours(), "bf16": Ours(wire="bf16", settings=StepSettings(precision="bf16"))}
"""Contestants by name; bf16 is floats on the wire and products of the network, not the tables."""


def trainer(
    work: Workload, shared: Collectives, how: Ours, *, dense_rate: float = DeepFM.dense_lr
) -> Callable[[Batch], StepResult]:
    """A rank's step of DeepFM, over collectives that `how.collectives` made."""
    model = DeepFM(dim=work.dim, hidden=work.hidden, dense_lr=dense_rate)
    built = pipeline(model, fields=work.fields, dense=work.dense)
    des = DesStep(built, seed=1, collectives=shared, settings=how.settings)
    return lambda batch: des.step(batch.features, batch.label)
