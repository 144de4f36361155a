"""Stages of a rank, in one pipeline: batches on their way into the model, and versions on their way out.

    Flags ─► cut ─► Cut ─► extract ─► Batch ─► exchange ─► fetch ─► Exchanged ─► learn ─► Learned ─► report
    depth     0              1                 0 or 1      0 or 1                  0                   0

    CommitState ─► commit ─► Share ─► push ─► Redis
    depth             0                 1

A stage's depth is the number of batches or versions that it holds between two calls. Nothing else of a rank
is in flight:

    extract   a thread computes features of the next batch while the batch before is learned;
    exchange  with several ranks, a thread sends keys of the next batch, over connections of its own;
    fetch     with tables on SSD, a thread reads rows of the next batch (trainer.tables.tiers);
    push      a thread writes a version to Redis while steps continue (trainer.publish.push).

All else runs in the caller's thread, so that collectives keep their order on every rank. A batch's rows are
looked up where it is learned, so that batches in flight do not change the model.

Every call of `Stages.advance` moves each batch one stage on, as a shift register does. `Stages.drain` learns
the batches in flight. Every commit drains them first: then the source's position is that of what was learned.
While the push holds a version, commits write checkpoints only. The last commit drains the push as well
(`Committer.finish`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from livectr.trainer import telemetry
from livectr.trainer.commits import Committer
from livectr.trainer.delayed.heads import Heads
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.result import StepResult
from livectr.trainer.des.step import DesStep
from livectr.trainer.progress import Progress
from livectr.trainer.quality.contest import Contest
from livectr.trainer.quality.final_labels import FinalLabels
from livectr.trainer.quality.gate import PublishGate
from livectr.trainer.quality.monitor import Monitor
from livectr.trainer.quality.predictions import PredictionLog, Records, records, roles_of
from livectr.trainer.quality.run_record import RunRecord
from livectr.trainer.quality.seen import NOT_COUNTED, ItemCounts, is_cold
from livectr.trainer.stream.batcher import Batcher
from livectr.trainer.stream.cut import Cut
from livectr.trainer.stream.feed import Batch, Feed
from livectr.trainer.tables.policies import Policies

if TYPE_CHECKING:  # redis is imported where something is published
    from livectr.trainer.publish.publisher import Publisher
    from livectr.trainer.publish.push import PushStage

F32 = npt.NDArray[np.float32]


class Stage(Protocol):
    """Part of the way of a batch or a version.

    Attributes:
        depth: most batches or versions that it holds between two calls.
        in_flight: batches or versions that it holds.
    """

    @property
    def depth(self) -> int: ...

    @property
    def in_flight(self) -> int: ...


@dataclass(frozen=True)
class Exchanged:
    """Batch whose keys are at the ranks of their tables, and what this rank does with it.

    Attributes:
        batch: without its finals.
        finals: the same batch with its finals, and what the heads do with it; None without heads.
    """

    batch: Batch
    prepared: PreparedBatch
    finals: tuple[Batch, PreparedBatch] | None = None


@dataclass(frozen=True)
class Learned:
    """Batch with the scores that it got before it was learned."""

    batch: Batch
    result: StepResult


class ExchangeStage:
    """All-to-all of a batch's keys; starts to read its rows that are not in memory. Collective.

    Args:
        ahead: a thread does it while the batch before is learned, once the field exchange is decided. Not
            with tables on SSD, whose reads and evictions take turns.
    """

    def __init__(self, step: DesStep, heads: Heads | None = None, *, ahead: bool = False) -> None:
        self.depth = int(ahead)
        self._step, self._heads = step, heads
        self._steps = (step,) if heads is None else (heads.step, step)
        self._worker: ThreadPoolExecutor | None = None
        self._held: Future[Exchanged] | None = None
        if ahead:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="exchange")
            for each in self._steps:
                each.run_ahead()

    @property
    def in_flight(self) -> int:
        return int(self._held is not None)

    def __call__(self, batch: Batch | None) -> Exchanged | None:
        if self._worker is None or any(step.choice.undecided for step in self._steps):
            return None if batch is None else self._exchange(batch)
        ready, self._held = self._held, None if batch is None else self._worker.submit(self._exchange, batch)
        return None if ready is None else ready.result()

    def close(self) -> None:
        """End the thread; a batch that it holds is dropped."""
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def _exchange(self, batch: Batch) -> Exchanged:
        finals = None if self._heads is None else (batch, self._heads.prepare(batch))
        batch = batch.without_finals()
        prepared = self._step.prepare(batch.features, batch.label, batch.sequence)
        return Exchanged(batch, prepared, finals)


class FetchStage:
    """Delay line of a batch whose rows a thread reads from SSD.

    Args:
        depth: 1 with tables on SSD, else 0: the batch continues at once.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._held: Exchanged | None = None

    @property
    def in_flight(self) -> int:
        return int(self._held is not None)

    def __call__(self, batch: Exchanged | None) -> Exchanged | None:
        if not self.depth:
            return batch
        ready, self._held = self._held, batch
        return ready


class LearnStage:
    """Step of Algorithm 1 between the table policies: admission before it, expiry after it. Collective."""

    depth = in_flight = 0

    def __init__(self, step: DesStep, policies: Policies, heads: Heads | None = None) -> None:
        self._step, self._policies, self._heads = step, policies, heads

    def __call__(self, ready: Exchanged | None) -> Learned | None:
        if ready is None:
            return None
        lessons = None
        if self._heads is not None and ready.finals is not None:
            batch, prepared = ready.finals
            lessons = dict.fromkeys(self._step.models, self._heads.learn(prepared, batch))
        self._policies.before(ready.batch.time_ms)
        result = self._step.learn(ready.prepared, lessons)
        self._policies.after()
        return Learned(ready.batch, result)


@dataclass
class ReportStage:
    """Counts a learned batch; rank 0 also logs its predictions and measures their quality.

    Late positives are no examples: they are neither counted nor scored, but give an example its final label.

    Args:
        rank: this rank; on others than 0 there is no log and there are no items.
        log: predictions, if they are kept.
        items: examples of each item, if the pipeline has items.
        publisher: learns the event times of the next version.
        labels: scores whose label windows have not passed; None where every label is final.
        contest: champion and challengers; None without challengers.
        gate: holds versions of a model failing the gate; None: nothing is published.
        record: writes the run log; None: no run log.
    """

    rank: int
    progress: Progress
    monitor: Monitor
    log: PredictionLog | None
    items: ItemCounts | None
    publisher: Publisher | None
    labels: FinalLabels | None = None
    contest: Contest | None = None
    gate: PublishGate | None = None
    record: RunRecord | None = None
    depth = in_flight = 0

    def __call__(self, learned: Learned | None) -> None:
        if learned is None:
            return
        batch, result = learned.batch, learned.result
        self.progress.add(batch)
        if self.rank != 0 or not len(batch):
            return
        logits: Mapping[str, F32] = {role: z[batch.sequence] for role, z in result.logits.items()}
        label = result.label[batch.sequence]
        seen = np.full(len(batch), NOT_COUNTED, np.uint32)
        if self.items is not None:
            seen[~batch.late] = self.items.seen(batch.item[~batch.late])
        named = dict(instance=batch.instance, user=batch.user, item=batch.item, time_ms=batch.time_ms)
        scored = records(**named, seen=seen, logits=logits, label=label)
        telemetry.EXAMPLES.inc(batch.examples)
        # Records that a run finds at its start are backfill: their age says nothing about the system.
        backfill = batch.time_ms < self.progress.began_ms
        telemetry.BACKFILL_EXAMPLES.inc(int(np.count_nonzero(backfill & ~batch.late)))
        self._measure(scored if self.labels is None else self.labels.add(scored, batch.late, batch.order))
        if self.publisher is not None:
            # A late positive is its click's event, at whose mark it leaves.
            times_ms = np.where(batch.late, batch.order, batch.time_ms)
            self.publisher.trained(times_ms[times_ms >= self.progress.began_ms])

    def finish(self) -> None:
        """At the end of the logs: the labels of all examples are final."""
        if self.labels is not None:
            self._measure(self.labels.finish())

    def _measure(self, scored: Records) -> None:
        """Log and measure examples with their final labels."""
        if self.log is not None:
            self.log.append(scored)
        logits = {role: scored[role] for role in roles_of(scored)}
        self.monitor.add(scored["time_ms"], scored["user"], logits, scored["label"], is_cold(scored["seen"]))
        if self.record is not None:
            self.record.add(scored, self.progress.steps)
        if self.gate is not None:
            champion = self.contest.champion if self.contest is not None else "rank"
            self.gate.add(logits[champion], scored["label"])
        if self.contest is not None:
            self.contest.add(logits, scored["label"], self.progress.steps)


@dataclass(frozen=True)
class Stages:
    """Stages of one rank, in order.

    Attributes:
        cut: answers flags with the next cut; the stages up to `report` follow on `advance`.
        commits: takes the state of a step boundary.
        push: writes versions; None if nothing is published.
    """

    cut: Batcher
    extract: Feed
    exchange: ExchangeStage
    fetch: FetchStage
    learn: LearnStage
    report: ReportStage
    commits: Committer
    push: PushStage | None

    @property
    def of_batches(self) -> tuple[Stage, ...]:
        """Stages that a batch passes after its cut."""
        return self.extract, self.exchange, self.fetch, self.learn, self.report

    @property
    def in_flight(self) -> int:
        """Batches that were cut and not learned; the same on every rank."""
        return sum(stage.in_flight for stage in self.of_batches)

    def advance(self, cut: Cut | None) -> None:
        """Move every batch one stage on, and let a new batch in if there is a cut. Collective."""
        batch = self.extract(cut)
        started = time.perf_counter()
        learned = self.learn(self.fetch(self.exchange(batch)))
        if learned is not None:
            telemetry.STEP_SECONDS.observe(time.perf_counter() - started)
            self.report(learned)

    def drain(self) -> None:
        """Learn all batches that are in flight. Collective."""
        while self.in_flight:
            self.advance(None)
