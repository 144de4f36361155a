"""When and how a run's state becomes a checkpoint and a version in Redis.

A commit takes place at a step boundary with nothing in flight, in these steps:

    1  settle the publish before: while one is still under way, this commit publishes nothing;
    2  every rank writes its checkpoint files;
    3  rank 0 gathers their digests;
    4  rank 0 renames the manifest into place;
    5  every rank copies what changed and pushes it to Redis in the background;
    6  some steps later, when every push has arrived, rank 0 flips the version.
"""

import logging
import math
import time
from dataclasses import replace
from enum import IntEnum
from typing import Protocol

import numpy as np

from livectr.protos.store import Keyspace
from livectr.trainer import telemetry
from livectr.trainer.checkpoint.checkpoint import Checkpointer, CheckpointState
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.snapshot import Boundary, Snapshotter
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.version import Push

LOG = logging.getLogger(__name__)
LAST_PUBLISH_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0
"""For the last version of a process that was asked to stop: whoever asked will not wait for long."""
CHECKPOINT_PAUSE = 9.0
"""Seconds without a checkpoint for each second that one took: at most a tenth of the time goes into them."""


class Due(IntEnum):
    """What rank 0 wants to be committed."""

    NOTHING = 0
    PUBLISH = 1
    ALL = 2
    """Checkpoint and publish."""


class Committed(Protocol):
    """The run whose state is committed."""

    steps: int
    examples: int

    def drain(self) -> None:
        """Learn all that is in flight. Collective."""

    def mark(self) -> Boundary:
        """The boundary between what changed until now and what changes from here on."""

    def state(self, boundary: Boundary, cursor: Cursor | None) -> CheckpointState:
        """What a checkpoint holds."""

    def snapshots(self, space: Keyspace) -> Snapshotter:
        """What copies a version's changes."""

    def forget(self, needed: list[Boundary]) -> None:
        """Free change lists from before all of these boundaries."""

    @property
    def overgrown(self) -> bool:
        """Whether this rank's change lists are longer than its tables."""


class Committer:
    """The commits of one rank's run; with neither a checkpoint nor a publisher there are none.

    Attributes:
        dirty: whether a commit has something to do.
        versions, rows: published so far.
    """

    def __init__(
        self,
        run: Committed,
        control: Control,
        checkpoint: Checkpointer | None,
        publisher: Publisher | None,
        *,
        publish_interval_s: float,
        checkpoint_interval_s: float,
    ) -> None:
        self._run, self._control = run, control
        self._checkpoint, self._publisher = checkpoint, publisher
        self._publish_interval_s, self._checkpoint_interval_s = publish_interval_s, checkpoint_interval_s
        # Tables of facts are read anew by every process, so that all of them count as changed.
        first = run.mark() if self.wanted else Boundary({}, 0, 0)
        self._published: Boundary | None = replace(first, facts=0)
        """The boundary of the version that Redis holds; None: what changed since is not known any more."""
        self._pushing: Boundary | None = self._published
        self._checkpointed = first
        self.dirty = publisher is not None
        self._next_commit = self._next_checkpoint = time.monotonic()
        self.versions = 0
        self.rows = 0

    @property
    def wanted(self) -> bool:
        """Whether there is anything to commit to."""
        return self._checkpoint is not None or self._publisher is not None

    @property
    def due(self) -> Due:
        """What should be committed by now."""
        now = time.monotonic()
        if not self.wanted or now < self._next_commit:
            return Due.NOTHING
        return Due.ALL if now >= self._next_checkpoint else Due.PUBLISH

    @property
    def held_back(self) -> bool:
        """Whether the model has learned too little to be published."""
        return self._publisher is not None and self._run.examples < self._publisher.least_examples

    @property
    def push(self) -> Push:
        """How far this rank's push is."""
        return self._publisher.flag if self._publisher is not None else Push.IDLE

    def commit(self, *, checkpoint: bool) -> bool:
        """Steps 1 to 5 (see the module's docstring); returns whether a version has begun. Collective."""
        self._run.drain()
        # 1 settle the publish before; a model that has learned too little stays here
        busy = self._publisher is not None and self._publisher.busy
        publish = self._publisher is not None and not busy and not self.held_back
        boundary = self._run.mark()
        if self._checkpoint is not None and checkpoint:
            # 2, 3, 4 the checkpoint
            cursor = None
            if self._publisher is not None:
                cursor = self._publisher.cursor(self._run.steps, begins=publish)
            started = time.monotonic()
            with telemetry.CHECKPOINT_SECONDS.time():
                self._checkpoint.commit(self._run.state(boundary, cursor))
            self._checkpointed = boundary
            pause_s = CHECKPOINT_PAUSE * (time.monotonic() - started)
            self._next_checkpoint = time.monotonic() + max(self._checkpoint_interval_s, pause_s)
        if self._publisher is not None and publish:
            # 5 push in the background
            self._pushing = boundary
            since = None if self._publisher.full else self._published
            assert since is not None or self._publisher.full
            snapshots = self._run.snapshots(self._publisher.store.space)
            committed = self._checkpoint.oldest if self._checkpoint is not None else 0
            taken = snapshots.take(self._run.steps, since)
            self._publisher.begin(taken, learned=self._run.examples, committed=committed)
        self._forget(boundary)
        self.dirty = busy
        self._next_commit = time.monotonic() + self._publish_interval_s
        return publish

    def _forget(self, boundary: Boundary) -> None:
        """Forget what neither the next checkpoint nor the next version needs.

        Redis may be away for days, and a checkpoint may be far off. Once the lists name more rows than there
        are, whoever needs the oldest ones takes all rows the next time, and they are forgotten as well.
        """
        while True:
            needed = [boundary]
            if self._checkpoint is not None:
                needed.append(self._checkpointed)
            if self._publisher is not None:
                needed += [one for one in (self._published, self._pushing) if one is not None]
            self._run.forget(needed)
            oldest = min(needed, key=lambda one: one.histories)
            if oldest is boundary or not self._control.gather(np.array([self._run.overgrown])).any():
                return
            if oldest is self._checkpointed and self._checkpoint is not None:
                LOG.info("changes are more than rows: the next checkpoint is complete")
                self._checkpoint.begin_anew()
                self._checkpointed = boundary
            else:
                self._drop_published()

    def _drop_published(self) -> None:
        assert self._publisher is not None
        LOG.warning("changes are more than rows while nothing is published: the next version is complete")
        self._published = self._pushing = None
        if not self._publisher.busy:
            self._publisher.begin_anew()

    def observe(self, pushes: list[int]) -> None:
        """6 flip when every rank's push has arrived, and note a version that was flipped."""
        if self._publisher is None:
            return
        busy = self._publisher.busy
        published = self._publisher.observe(pushes)
        if published is not None:
            self._published = self._pushing
            self.versions += 1
            self.rows += published.rows
        elif not self._publisher.busy and not self.held_back and (busy or self._publisher.full):
            self.dirty = True  # it failed or was lost: the next commit repeats it, even if no event comes
        if self._published is None and not self._publisher.busy and not self._publisher.full:
            self._publisher.begin_anew()

    def settle(self, deadline: float = math.inf, *, patient: bool = True) -> None:
        """Exchange states of pushes until no version is under way. Collective.

        deadline: of time.monotonic, by rank 0's clock; then nobody waits for Redis any more that cannot be
        asked or, unless patient, is still at it.
        """
        while self._publisher is not None and self._publisher.busy:
            late = time.monotonic() > deadline
            told = self._control.gather(np.array([self._publisher.state, late]))
            self.observe(told[:, 0].tolist())
            if told[0, 1] and (not patient or Push.UNKNOWN in told[:, 0]):
                return
            time.sleep(0.002)

    def finish(self, *, stopped: bool = False) -> None:
        """Commit the end of the run and see its version flipped. Collective.

        The checkpoint waits for nobody; only then Redis gets some time for the last version: little if the
        process was asked to stop.
        """
        self._run.drain()
        if not self.wanted:
            return
        began = self.commit(checkpoint=True)
        limit_s = STOP_DEADLINE_S if stopped else LAST_PUBLISH_DEADLINE_S
        deadline = time.monotonic() + limit_s
        while self._publisher is not None:
            served = self.versions
            self.settle(deadline, patient=not stopped)
            if began and self.versions > served:
                return
            if self.held_back:
                LOG.warning(
                    "nothing was published: the model has learned %d examples, and must have learned %d",
                    self._run.examples,
                    self._publisher.least_examples,
                )
                return
            if self._publisher.busy or self._control.broadcast_json(time.monotonic() > deadline):
                LOG.warning("the last version was not published; the next run publishes it")
                return
            if began:
                time.sleep(0.5)
            began = self.commit(checkpoint=True)
