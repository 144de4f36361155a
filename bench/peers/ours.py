"""Our side of the contests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peers.workloads import Batch, Workload
from bench.planted import pipeline
from models import DeepFM
from trainer.collectives import Collectives
from trainer.step import DesStep, StepResult

SETTINGS: dict[str, dict[str, Any]] = {"fp32": {}}
"""Contestant → settings of `DesStep`."""


def ours(work: Workload, shared: Collectives, **settings: Any) -> Callable[[Batch], StepResult]:
    """A rank's step."""
    model = DeepFM(dim=work.dim, hidden=work.hidden)
    built = pipeline(model, fields=work.fields, dense=work.dense)
    des = DesStep(built, rank=shared.rank, world=shared.world, seed=1, collectives=shared, **settings)
    return lambda batch: des.step(batch.features, batch.label)
