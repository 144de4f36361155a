"""Stages of a rank, in one pipeline: batches on their way into the model, and versions on their way out.

    Flags ─► cut ─► Cut ─► extract ─► Batch ─► exchange ─► fetch ─► Exchanged ─► learn ─► Learned ─► report
    depth     0           1 or 2               0 or 1      0 or 1                  0                   0

    CommitState ─► commit ─► Share ─► push ─► Redis
    depth             0                 1

A stage's depth is the number of batches or versions that it holds between two calls. Nothing else of a rank
is in flight:

    extract   a thread computes features of the next batch while the batch before is learned; on a device, two
              threads, so that a batch is staged while another is computed;
    exchange  with several ranks, a thread sends keys of the next batch, over connections of its own;
    fetch     with tables on SSD, a thread reads rows of the next batch (trainer.tables.tiers); with tables on
              a GPU, rows that it lacks are brought there (kernels.gpu_table.gpu_cache);
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from livectr.ingest.language.labels import EARLY_LABEL
from livectr.ingest.language.targets import Target
from livectr.kernels.stream.join import FINAL_NEGATIVE
from livectr.models import lognormal
from livectr.models.esmm import after_click
from livectr.models.fnw import fake_negative_weighted
from livectr.models.importance import counts, plain, weighted
from livectr.models.losses import Lesson
from livectr.trainer import telemetry
from livectr.trainer.commits import Committer
from livectr.trainer.delayed.heads import Heads
from livectr.trainer.delayed.labels import late_lesson, outcomes
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.result import StepResult
from livectr.trainer.des.step import DesStep, Teach, TeachPart
from livectr.trainer.learner import Learner
from livectr.trainer.position_bias import PositionBias, Shown
from livectr.trainer.progress import Progress
from livectr.trainer.quality.evaluation import Evaluation
from livectr.trainer.stream.batcher import Batcher
from livectr.trainer.stream.cut import Cut
from livectr.trainer.stream.feed import Batch, Feed

I64 = npt.NDArray[np.int64]

if TYPE_CHECKING:  # redis is imported where something is published
    from livectr.trainer.publish.publisher import Publisher
    from livectr.trainer.publish.push import PushStage


OfLabels = Mapping[str, tuple[Tensor, Tensor]]
"""Beginning of the names of a label's heads → logits f32[B] of c and t (trainer.delayed.heads)."""
Given = Callable[[Mapping[str, Tensor], Mapping[str, Lesson] | None, slice], Mapping[str, Lesson]]
"""Function of logits, of lessons by which late labels are learned, and of the slice of a batch's rows."""


class Stage(Protocol):
    """Part of the way of a batch or a version.

    Attributes:
        depth: most batches or versions that it holds between two calls.
        in_flight: batches or versions that it holds.
    """

    @property
    def depth(self) -> int:
        """Most batches or versions that it holds between two calls."""

    @property
    def in_flight(self) -> int:
        """Batches or versions that it holds."""


@dataclass(frozen=True)
class Exchanged:
    """Batch whose keys are at the ranks of their tables, and what this rank does with it.

    Attributes:
        heads: what the heads do with it; None without heads.
    """

    batch: Batch
    prepared: PreparedBatch
    heads: PreparedBatch | None = None


@dataclass(frozen=True)
class Learned:
    """Batch with the scores that it got before it was learned.

    Attributes:
        batch: examples and late positives.
        result: their scores.
        again: rows that came again for a label beside the click; None: the log has no such labels.
    """

    batch: Batch
    result: StepResult
    again: Learned | None = None

    @staticmethod
    def of(batch: Batch, result: StepResult) -> Learned:
        """Learned batch, with its finals."""
        final = batch.outcome >= FINAL_NEGATIVE
        again = None
        if batch.targets is not None and final.any():
            again = Learned(batch.finals(), result.of(final))
        return Learned(batch.without_finals(), result.of(~final), again)

    def parts(self) -> Iterator[Learned]:
        """Learned batches of a block."""
        start = 0
        again = iter(()) if self.again is None else self.again.parts()
        for part in self.batch.parts():
            rows = slice(start, start := start + len(part))
            logits = {role: z[rows] for role, z in self.result.logits.items()}
            result = replace(self.result, logits=logits, label=self.result.label[rows])
            yield Learned(part, result, next(again, None))


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
        """Batches that it holds: 0, or 1 if a thread exchanges ahead."""
        return int(self._held is not None)

    def __call__(self, batch: Batch | None) -> Exchanged | None:
        """Exchange a batch. With `ahead` returns the batch of the call before; None lets that out."""
        if self._worker is None or any(step.choice.undecided for step in self._steps):
            return None if batch is None else self._exchange(batch)
        ready, self._held = self._held, None if batch is None else self._worker.submit(self._exchange, batch)
        return None if ready is None else ready.result()

    def close(self) -> None:
        """End the thread; a batch that it holds is dropped."""
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def _exchange(self, batch: Batch) -> Exchanged:
        heads = None if self._heads is None else self._heads.prepare(batch)
        return Exchanged(batch, self._step.prepare(batch.features, batch.clicked, batch.sequence), heads)


class FetchStage:
    """Delay line of a batch whose rows come from SSD or go to a GPU, while the batch before it is learned.

    With tables in DRAM alone the batch continues at once.
    """

    def __init__(self, step: DesStep) -> None:
        self.depth = int(step.storage.tiered)
        self._step = step
        self._held: Exchanged | None = None

    @property
    def in_flight(self) -> int:
        """Batches that wait for their rows: 0 or 1."""
        return int(self._held is not None)

    def __call__(self, batch: Exchanged | None) -> Exchanged | None:
        """Return the batch of the call before, or with depth 0 the same batch; None lets a batch out."""
        if not self.depth:
            return batch
        if batch is not None:
            self._step.prefetch(batch.prepared)
        ready, self._held = self._held, batch
        return ready


class LearnStage:
    """Learns a batch: the heads first, whose scores weigh the main model's examples. Collective.

    Args:
        weighted: the loss is fake-negative weighted (`models.fnw`).
        targets: labels beside the click, in the order of a batch's.
        bias: curves of being seen; None: the pipeline names no position.
        late: targets that are learned before their labels are final; `heads` are theirs.
    """

    depth = in_flight = 0

    def __init__(
        self,
        main: Learner,
        heads: Heads | None = None,
        *,
        weighted: bool = False,
        targets: Sequence[Target] = (),
        bias: PositionBias | None = None,
        late: Collection[str] = (),
    ) -> None:
        self._main, self._heads, self._weighted, self._targets = main, heads, weighted, tuple(targets)
        self._bias, self._late = bias, frozenset(late)

    def __call__(self, ready: Exchanged | None) -> Learned | None:
        """Learn a batch, and return it with the scores that it got before; None: nothing to learn."""
        if ready is None:
            return None
        batch, shown = ready.batch, self._shown(ready.batch)
        result = self._main.learn(ready.prepared, batch.time_ms, self._teach(ready, shown))
        return Learned.of(batch, result if shown is None else shown.scored(result))

    def _shown(self, batch: Batch) -> Shown | None:
        """Places of a batch; None: the pipeline names no position."""
        if self._bias is None or batch.places is None:
            return None
        return self._bias.of_batch(batch.places)

    def block(self, batch: Batch) -> Learned | None:
        """Learn the batches of a block by compiled calls; None: each has to be learned alone."""
        learners = [self._main, *([] if self._heads is None else [self._heads.learner])]
        if batch.bounds is None or not all(
            each.takes_block(batch.features, batch.bounds) for each in learners
        ):
            return None
        shown = self._shown(batch)
        result = self._main.learn_block(
            batch.features, batch.clicked, batch.bounds, self._teach_parts(batch, batch.bounds, shown)
        )
        if result is None:
            return None
        return Learned.of(batch, result if shown is None else shown.scored(result))

    def _teach_parts(self, batch: Batch, bounds: I64, shown: Shown | None) -> TeachPart | None:
        """`_teach` of the batches of a block."""
        of_labels: OfLabels = {}
        if self._late and self._heads is not None:
            of_labels = self._heads.score_block(batch, bounds)
        taught, given = self._taught_parts(batch, bounds), self._given(batch, shown, of_labels)
        if given is None:
            return taught
        return lambda logits, rows: given(logits, None if taught is None else taught(logits, rows), rows)

    def _taught_parts(self, batch: Batch, bounds: I64) -> TeachPart | None:
        """`_taught` of the batches of a block."""
        if self._heads is not None and not self._late:
            lesson = self._heads.learn_block(batch, bounds)
            return lambda logits, rows: dict.fromkeys(logits, lesson(rows))
        if self._weighted:
            outcome = torch.from_numpy(batch.outcome.astype(np.float32))
            return lambda logits, rows: {
                role: fake_negative_weighted(z, outcome[rows]) for role, z in logits.items()
            }
        return None

    def _teach(self, ready: Exchanged, shown: Shown | None) -> Teach | None:
        """Lessons of a batch for the main model; None: its labels are all that it learns from."""
        of_labels: OfLabels = {}
        if self._late and self._heads is not None and ready.heads is not None:
            of_labels = self._heads.score(ready.heads, ready.batch)
        taught, given = self._taught(ready), self._given(ready.batch, shown, of_labels)
        if given is None:
            return taught
        return lambda logits: given(logits, None if taught is None else taught(logits), slice(None))

    def _given(self, batch: Batch, shown: Shown | None, of_labels: OfLabels) -> Given | None:
        """Lessons with the weights, places and targets that the rows give; None: they give none.

        of_labels: logits of ES-DFM's heads of labels that come late.
        """
        if batch.weights is None and batch.targets is None and shown is None:
            return None
        again, stage = torch.from_numpy(batch.outcome >= FINAL_NEGATIVE), torch.from_numpy(batch.outcome)
        labels = torch.from_numpy(np.where(again, 0, batch.outcome).astype(np.float32))
        only_once = not bool(again.any())
        targets = None if batch.targets is None else torch.from_numpy(batch.targets)
        values = None if batch.values is None else torch.from_numpy(batch.values)
        places = {target.name: v for v, target in enumerate(t for t in self._targets if t.value is not None)}
        weights = None if batch.weights is None else torch.from_numpy(batch.weights)

        def given(
            logits: Mapping[str, Tensor], taught: Mapping[str, Lesson] | None, rows: slice
        ) -> dict[str, Lesson]:
            click_only = plain(labels[rows])
            if not only_once:  # rows that come again teach the click nothing
                click_only = click_only._replace(weight=click_only.weight.masked_fill(again[rows], 0.0))
            found = dict(taught or dict.fromkeys(logits, click_only))
            if weights is not None:
                found = {role: weighted(lesson, weights[rows]) for role, lesson in found.items()}
            click = logits.get("rank")
            if shown is not None:
                shown.begin(rows)
                of_click = logits.keys() - {role for target in self._targets for role in target.roles}
                found |= {r: shown.lesson(r, logits[r], found[r], rows) for r in logits if r in of_click}
                click = shown.product("rank", logits["rank"], rows)
            for t, target in enumerate(self._targets):
                assert targets is not None
                unknown = targets[rows, t].isnan()
                came = targets[rows, t].nan_to_num(0.0)
                lesson, own = plain(came), logits[target.role]
                if target.name in self._late:
                    outcome, heads = (
                        outcomes(stage[rows].float(), targets[rows, t]),
                        of_labels.get(f"{target.name}."),
                    )
                    of_rows = None if heads is None else (heads[0][rows], heads[1][rows])
                    lesson = late_lesson(outcome, own, None if target.after is None else click, of_rows)
                elif target.after is not None:
                    assert click is not None
                    lesson = after_click(click, own, came)
                if self._late and target.name not in self._late:
                    lesson = lesson._replace(sure=~unknown)
                if bool(unknown.any()):
                    lesson = lesson._replace(weight=lesson.weight.masked_fill(unknown, 0.0))
                if weights is not None:
                    lesson = lesson._replace(importance=counts(weights[rows], labels[rows]))
                if shown is not None:
                    lesson = shown.lesson(target.role, logits[target.role], lesson, rows)
                found[target.role] = lesson
                if values is None or target.value is None:
                    continue
                value = values[rows, places[target.name]]
                worths = lognormal.lessons(
                    value.nan_to_num(0.0),
                    logits[f"{target.role}.{lognormal.LOCATION}"],
                    logits[f"{target.role}.{lognormal.SPREAD}"],
                    ~value.isnan() & (stage[rows] < EARLY_LABEL),
                )
                for role in target.value_roles:
                    worth = worths[role.rpartition(".")[2]]
                    found[role] = worth._replace(importance=lesson.importance, sure=lesson.sure)
            return found

        return given

    def _taught(self, ready: Exchanged) -> Teach | None:
        """Lessons by the way in which late labels are learned; None: labels are final, or taken as such."""
        if self._heads is not None and ready.heads is not None and not self._late:
            lesson = self._heads.learn(ready.heads, ready.batch)
            return lambda logits: dict.fromkeys(logits, lesson)
        if self._weighted:
            outcome = torch.from_numpy(ready.batch.outcome.astype(np.float32))
            return lambda logits: {role: fake_negative_weighted(z, outcome) for role, z in logits.items()}
        return None


@dataclass(frozen=True)
class ReportStage:
    """Counts a learned batch; rank 0 also evaluates it. Late positives are not counted as examples.

    Attributes:
        evaluation: of rank 0.
        publisher: learns the event times of the next version.
    """

    progress: Progress
    evaluation: Evaluation | None
    publisher: Publisher | None
    depth = in_flight = 0

    def __call__(self, learned: Learned | None) -> None:
        """Count a learned batch, and evaluate it on rank 0; None: nothing was learned."""
        if learned is None:
            return
        by_step = learned.again is not None or (self.evaluation is not None and self.evaluation.by_step)
        if learned.batch.bounds is not None and by_step and self.evaluation is not None:
            for part in learned.parts():
                self(part)
            return
        batch, began_ms = learned.batch, self.progress.began_ms
        self.progress.add(batch)
        if self.evaluation is not None and learned.again is not None:
            self.evaluation.add_again(learned.again.batch, learned.again.result, self.progress.steps)
        if self.evaluation is None or not len(batch):
            return
        telemetry.EXAMPLES.inc(batch.examples)
        # Records that a run finds at its start are backfill: their age says nothing about the system.
        backfill = batch.time_ms < began_ms
        telemetry.BACKFILL_EXAMPLES.inc(int(np.count_nonzero(backfill & ~batch.late)))
        self.evaluation.add(batch, learned.result, self.progress.steps)
        if self.publisher is not None:
            # A late positive is its click's event, at whose mark it leaves.
            times_ms = np.where(batch.late, batch.order, batch.time_ms)
            self.publisher.trained(times_ms[times_ms >= began_ms])

    def finish(self) -> None:
        """At the end of the logs: the labels of all examples are final."""
        if self.evaluation is not None:
            self.evaluation.finish(self.progress.steps)


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
        if batch is not None and batch.bounds is not None:
            started, parts = time.perf_counter(), len(batch.bounds) - 1
            if (block := self.learn.block(batch)) is not None:
                telemetry.STEP_SECONDS.observe((time.perf_counter() - started) / parts, parts)
                self.report(block)
                return
        for part in (None,) if batch is None else batch.parts():
            started = time.perf_counter()
            learned = self.learn(self.fetch(self.exchange(part)))
            if learned is not None:
                telemetry.STEP_SECONDS.observe(time.perf_counter() - started)
                self.report(learned)

    def drain(self) -> None:
        """Learn all batches that are in flight. Collective."""
        while self.in_flight:
            self.advance(None)
