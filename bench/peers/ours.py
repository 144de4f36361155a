"""Our side of the contests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from bench.peers.workloads import Batch, Workload
from bench.planted import pipeline
from livectr.models import DeepFM
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.batch import PreparedBatch
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
    des = _step(work, shared, how, dense_rate)
    return lambda batch: des.step(batch.features, batch.label)


def trainer_ahead(work: Workload, shared: Collectives, how: Ours) -> Ahead:
    """`trainer` of several ranks, with keys sent ahead."""
    return Ahead(_step(work, shared, how, DeepFM.dense_lr))


def _step(work: Workload, shared: Collectives, how: Ours, dense_rate: float) -> DesStep:
    model = DeepFM(dim=work.dim, hidden=work.hidden, dense_lr=dense_rate)
    built = pipeline(model, fields=work.fields, dense=work.dense)
    return DesStep(built, seed=1, collectives=shared, settings=how.settings)


class Ahead:
    """Step of several ranks whose keys travel while the batch before is learned, as in a run
    (`trainer.stages.ExchangeStage`). A call takes a batch and learns the batch before; the first batch is
    learned twice, so that every call learns one.
    """

    def __init__(self, des: DesStep) -> None:
        self._des = des
        self._worker = ThreadPoolExecutor(1)
        self._held: Future[PreparedBatch] | None = None
        des.run_ahead()

    def __call__(self, batch: Batch) -> StepResult:
        """Result of the batch before."""
        before = self._held
        if before is None:
            result = self._des.step(batch.features, batch.label)
            self._held = self._prepare(batch)
            return result
        self._held = self._prepare(batch)
        return self._des.learn(before.result())

    def _prepare(self, batch: Batch) -> Future[PreparedBatch]:
        return self._worker.submit(self._des.prepare, batch.features, batch.label)
