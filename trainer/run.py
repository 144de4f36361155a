"""Training from a log stream: the loop of a rank.

    source ─poll─► cut ─► extract ─► exchange ─► fetch ─► learn ─► report      (trainer.stages)
                    │ the header's flags: stop, quiet, due, push
                    └─► drain ─► commit: checkpoint, then version ─► push      (trainer.commits)

`trainer.build` assembles the parts and restores them; here they move.

A process that dies anywhere leaves a whole checkpoint and a whole version. The run that follows reads the log
again from the checkpoint's positions. Batches are a function of the log, so it learns the same model.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from livectr.ingest.pipeline import Pipeline
from livectr.system.errors import InternalError
from livectr.system.heap import tune_malloc
from livectr.system.logs import add_log_field
from livectr.system.threads import watched_threads
from livectr.trainer.build import build
from livectr.trainer.checkpoint.step_back import Asked
from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.replicas import check_replicas
from livectr.trainer.commit_state import CommitState
from livectr.trainer.options import TrainOptions
from livectr.trainer.parts import Parts
from livectr.trainer.process import stop_signals
from livectr.trainer.quality.run_record import Moment, gathered
from livectr.trainer.report import Report, report_of, waiting_of
from livectr.trainer.schedule import Due
from livectr.trainer.stages import Stages
from livectr.trainer.stream.backlog import Backlog
from livectr.trainer.stream.batcher import Round
from livectr.trainer.stream.header import Flags
from livectr.trainer.unlearned import Unlearned

if TYPE_CHECKING:
    from livectr.trainer.stream.group_offsets import GroupOffsets

__all__ = ["Report", "TrainOptions", "train"]

LOG = logging.getLogger(__name__)


def train(
    pipeline: Pipeline, options: TrainOptions, heard: Callable[[int], None] = lambda number: None
) -> Report:
    """Train until the options, a signal or the log's end say stop; under torchrun as one of its ranks.

    SIGTERM and SIGINT on any rank let every rank finish its step, commit and return.

    Args:
        pipeline: with its models.
        options: of the run.
        heard: called with the number of such a signal of this process.

    Raises:
        DataError: too few rows of the log are usable; nothing more is committed.
        UserError: before any state was touched; or FencedError, when another trainer has taken over.
        CheckpointError: no generation of the checkpoint is whole.
        InternalError: a thread died; what was learned until then is committed.
        NotLearningError: the model is broken, and learns no batch any more; nothing more is committed
            (trainer.unlearned).
    """
    tune_malloc()
    with (
        compute_threads(options.threads_here()),
        connect(wire=options.wire, device=options.device) as collectives,
        stop_signals(heard) as stop,
        watched_threads() as deaths,
    ):
        options.check_files()
        while True:
            with (
                ExitStack() as resources,
                collectives.abort.guard(),  # before resources are closed, which may take long
            ):
                parts, stages = build(pipeline, options, collectives, resources)
                add_log_field("version", partial(published, parts))
                offsets = group_offsets(options, resources) if collectives.rank == 0 else None
                training = Training(parts, stages, lambda: stop() or bool(deaths), offsets)
                report = training.run()
                if deaths:
                    raise InternalError(f"{deaths[0]}; the last step was committed, start the trainer again")
                if training.goes_back:  # it begins again from its checkpoint
                    continue
                if options.report is not None and collectives.rank == 0:
                    report.write(Path(options.report))
                if parts.record is not None:
                    parts.record.end(report.steps, report)
                return report


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Let torch and the host kernels compute with `count` threads while this is open.

    For the kernels, a LIVECTR_THREADS in the environment has precedence.
    """
    before, kernels = torch.get_num_threads(), os.environ.get("LIVECTR_THREADS")
    os.environ["LIVECTR_THREADS"] = kernels or str(count)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        os.environ.pop("LIVECTR_THREADS")
        if kernels is not None:
            os.environ["LIVECTR_THREADS"] = kernels


def group_offsets(options: TrainOptions, resources: ExitStack) -> GroupOffsets | None:
    """Offsets of the consumer group, closed with the run; None: no group."""
    if options.group is None:
        return None
    from livectr.trainer.stream.group_offsets import GroupOffsets  # imports kafka

    offsets = GroupOffsets(options.source, options.group)
    resources.callback(offsets.close)
    return offsets


def published(parts: Parts) -> int | None:
    """Version that this run has published last; None before the first."""
    last = parts.publisher.last if parts.publisher is not None else None
    return last.version if last is not None else None


class Training:
    """The loop of one rank.

    Args:
        parts, stages: made by `trainer.build.build`.
        stop: tells if the process was asked to end.
        offsets: rank 0's, if the run has a consumer group.

    Attributes:
        goes_back: somebody has asked for an older generation, from which the run begins again.
    """

    def __init__(
        self,
        parts: Parts,
        stages: Stages,
        stop: Callable[[], bool] = lambda: False,
        offsets: GroupOffsets | None = None,
    ) -> None:
        self.parts, self.stages = parts, stages
        self.stop = stop
        self._offsets = offsets
        self.goes_back = False
        self._closing = False
        self._waiting: dict[str, int] = {}
        self._fed = parts.progress.resumed
        self._backlog = Backlog(parts.stream.source)
        first = parts.checkpoint if parts.control.rank == 0 else None
        self._asked = Asked(first.root if first is not None else None)
        self._positions: list[
            tuple[str, int, int]
        ] = []  # of the newest checkpoint, or the one that is written

    def run(self) -> Report:
        """Train until the end, or until the run goes back. Collective."""
        parts, stages, commits = self.parts, self.stages, self.stages.commits
        unlearned = Unlearned(parts)
        parts.contents.wait(parts.control, self.stop)
        started = time.monotonic()
        if parts.record is not None:
            parts.record.start(self._moment, parts.control.world)
        with parts.monitor:
            while True:
                round_ = stages.cut.round(self._flags())
                if round_.flags[0].back:
                    stages.drain()  # no collective stays under way
                    self.goes_back = True
                    return report_of(parts, time.monotonic() - started, commits.counts, complete=False)
                parts.stream.watch.check(round_.flags)
                if parts.control.rank == 0:
                    self._backlog.observe(round_.flags)
                commits.copy()
                commits.observe([flags.publish for flags in round_.flags], parts.progress.examples)
                if commits.complete_checkpoint([flags.written for flags in round_.flags]):
                    self._commit_offsets()
                self._record(sample=round_.flags[0].sample)
                parts.contents.follow()
                if round_.moved:
                    commits.changed()
                if self._ends(round_):
                    break
                due = self._due(round_)
                if commits.begins(due):
                    stages.drain()
                    unlearned.look()
                    publish = commits.publishes(due)
                    commits.commit(
                        self._state(checkpoint=due == Due.ALL, ahead=due == Due.AHEAD, publish=publish)
                    )
                stages.advance(round_.cut)
                unlearned.look()
                if round_.cut is not None:
                    commits.changed()
                version = parts.publisher.last if parts.publisher else None
                notes = [note for note in (self._backlog.line(), parts.stream.watch.line()) if note]
                parts.monitor.show(parts.progress.examples, version, "  ·  ".join(notes))
            stages.drain()
            parts.stream.watch.finish()  # a batch's rows may be refused as late as when it is learned
            unlearned.look()
            if round_.ended and parts.options.at_end != "keep":
                stages.report.finish()
            if parts.record is not None and (round_.ended or parts.checkpoint is None):
                parts.record.finish(parts.progress.steps)
            self._record(sample=parts.options.run_log is not None)
            stopped = any(flags.stop for flags in round_.flags)
            if commits.wanted:
                commits.finish(self._state(checkpoint=True), stopped=stopped)
                self._commit_offsets()
                self._record(sample=parts.options.run_log is not None and parts.publisher is not None)
            parts.monitor.gauges()
        complete = round_.ended or self._enough() or not stopped
        if round_.ended and parts.options.at_end == "keep":
            self._waiting = waiting_of(parts)
        return report_of(
            parts, time.monotonic() - started, commits.counts, complete=complete, waiting=self._waiting
        )

    def _state(self, *, checkpoint: bool, ahead: bool = False, publish: bool = True) -> CommitState:
        """State of this step boundary. Collective. Raises InternalError if the ranks' networks differ."""
        parts = self.parts
        replicas = {name: t for learner in parts.learners for name, t in learner.replicated().items()}
        check_replicas(parts.control, replicas)
        if checkpoint:
            self._positions = [(*place, at.offset) for place, at in parts.stream.source.positions().items()]
        return CommitState.of(parts, checkpoint=checkpoint, ahead=ahead, publish=publish)

    def _commit_offsets(self) -> None:
        """Let the broker know the checkpoint's positions, for its tools. Collective."""
        if self.parts.options.group is None:
            return
        every = self.parts.control.gather_json(self._positions)
        if self._offsets is not None:
            self._offsets.commit({(topic, number): at for part in every for topic, number, at in part})

    def _flags(self) -> Flags:
        """Header of this rank's next round."""
        parts = self.parts
        self._fed = self._fed or any(parts.stream.source.stats.events.values())
        rows, unusable = parts.stream.watch.totals
        own = self._backlog.own
        return Flags(
            rows=rows,
            behind=own.behind,
            done=own.done,
            unread=own.unread,
            unusable=unusable,
            suspect=parts.stream.watch.suspect,
            stop=self.stop(),
            back=self._asked(),
            paused=parts.stream.source.paused,
            newest=parts.stream.source.newest_ms,
            quiet=parts.stream.source.quiet and (self._fed or parts.control.world > 1),
            due=self.stages.commits.due if parts.control.rank == 0 else Due.NOTHING,
            publish=self.stages.commits.push,
            sample=parts.record is not None and parts.record.due,
            written=self.stages.commits.written,
        )

    @property
    def _moment(self) -> Moment:
        return Moment(self.parts.progress.steps, self.parts.progress.examples)

    def _record(self, *, sample: bool) -> None:
        """Note a new version; write a sample to the run log. Collective if `sample`."""
        parts = self.parts
        if parts.record is not None and parts.publisher is not None:
            parts.record.published(parts.publisher.last)
        if not sample:
            return
        earlier = parts.progress.earlier.get("dead_letters", {})
        share = gathered(parts.control, parts.monitor.tables, parts.stream.letters.counts, earlier)
        if parts.record is not None:
            parts.record.sample(self._moment, share)

    @property
    def _begun(self) -> int:
        """Steps that are learned or in flight."""
        return self.parts.progress.steps + self.stages.in_flight

    def _enough(self) -> bool:
        """Tell if the run has as many steps as it may have."""
        most = self.parts.options.max_steps
        return most is not None and self._begun >= most

    def _ends(self, round_: Round) -> bool:
        """Tell if the loop ends here; all ranks decide alike."""
        parts = self.parts
        if any(flags.stop for flags in round_.flags):
            LOG.info("asked to stop after step %d", self._begun)
            return True
        if self._enough():
            return True
        if round_.cut is not None:
            # Its rows are popped after this (`Feed`). At the end rows leave that may come before them: where
            # topics or partitions are idle, those of the others go ahead.
            return False
        # A rank may own no partition with events; examples are counted over all ranks.
        fed = parts.control.world == 1 or parts.progress.examples > 0
        if fed and all(flags.quiet for flags in round_.flags):
            parts.stream.source.finish()
        newest = max(flags.newest for flags in round_.flags)
        waits = not round_.moved and all(flags.paused for flags in round_.flags)
        writes = parts.checkpoint is not None and parts.checkpoint.busy
        if not parts.stream.source.reached(newest) and waits and not writes:
            self._close()
        return round_.ended

    def _due(self, round_: Round) -> int:
        """Commit that is due: once the run is closing, no generation comes before the last one."""
        due = round_.flags[0].due
        return Due.PUBLISH if self._closing and due in (Due.ALL, Due.AHEAD) else due

    def _close(self) -> None:
        """Save the run for the next one, which reads on, and learn what waits for labels. Collective."""
        parts = self.parts
        self._waiting = waiting_of(parts)
        self._closing = True
        if self._waiting:
            self.stages.drain()
            self.stages.commits.commit(self._state(checkpoint=True, publish=False))
            parts.progress.resumes = parts.checkpoint.begun if parts.checkpoint is not None else 0
        parts.stream.source.end_waiting()
