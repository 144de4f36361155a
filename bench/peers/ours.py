"""Our side of the contests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.workloads import Batch, Workload
from bench.planted import pipeline
from models import DeepFM
from trainer.collectives import Collectives, Wire
from trainer.step import DesStep, StepResult, StepSettings


@dataclass(frozen=True)
class Ours:
    """How ours runs: floats on the wire, and the step's settings."""

    wire: Wire = "fp32"
    settings: StepSettings = StepSettings()


OURS = {"fp32": Ours(), "bf16": Ours(wire="bf16")}
"""Contestants by name."""


def trainer(work: Workload, rank: int, world: int, how: Ours) -> Callable[[Batch], StepResult]:
    """A rank's step."""
    model = DeepFM(dim=work.dim, hidden=work.hidden)
    built = pipeline(model, fields=work.fields, dense=work.dense)
    shared = Collectives(rank, world, wire=how.wire)
    des = DesStep(built, rank=rank, world=world, seed=1, collectives=shared, settings=how.settings)
    return lambda batch: des.step(batch.features, batch.label)
