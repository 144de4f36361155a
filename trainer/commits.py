"""Commits: a run's state becomes a checkpoint and a version in Redis.

A commit takes the state of a step boundary with no batch in flight (`CommitState`). The version passes on to
the push, the stage after it (trainer.publish.push), which holds one. The steps:

    1  finish the previous publish: while it is under way, this commit publishes nothing;
    2  every rank copies what its checkpoint files hold, and writes them in the background; many rows are
       copied at boundaries before (trainer.checkpoint.table_chain), and so are those of complete versions;
    3  some steps later, when every rank's files are written, rank 0 gathers their digests,
    4  and renames the manifest into place;
    5  every rank copies what changed and pushes it to Redis in the background. If a number of it is not
       finite, no rank pushes: servers stay with the version that they have;
    6  some steps later, when every push has arrived, rank 0 flips the version.

A version may be flipped before the checkpoint of its boundary exists; commits between checkpoints, which only
publish, are as far ahead (trainer.publish.succession).
When a log falls silent, what only they hold gets a commit for the checkpoint alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from livectr.trainer.change_marks import ChangeMarks
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.comm.control import Control
from livectr.trainer.commit_state import CommitState
from livectr.trainer.counts import summed
from livectr.trainer.publish.boundary import Boundary
from livectr.trainer.publish.spool import CopyAhead
from livectr.trainer.publish.telemetry import PUBLISH_COPY_SECONDS, PUBLISH_HELD, WITHHELD_VERSIONS
from livectr.trainer.publish.version import Push, VersionSnapshot
from livectr.trainer.schedule import Due, Schedule

if TYPE_CHECKING:
    from livectr.trainer.publish.publisher import Publisher

LOG = logging.getLogger(__name__)
LAST_PUBLISH_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0
"""Wait for the last version of a process that was asked to stop; its supervisor kills it soon."""


class Committer:
    """Commits of one rank's run; a no-op without a checkpoint and a publisher.

    Args:
        first: boundary before the first step of this process.
        schedule: when commits are due. A commit that found the previous push under way is repeated as soon as
            that push has ended.
        held: reason for which no version may be published, or "" (trainer.holds); rank 0 knows it.

    Attributes:
        dirty: the next version has something to say.
        unsaved: the newest checkpoint, or the one that is being written, lacks something.
        versions, rows, complete: published by this process: versions, their rows, complete versions.
    """

    def __init__(
        self,
        control: Control,
        checkpoint: Checkpointer | None,
        publisher: Publisher | None,
        first: Boundary,
        schedule: Schedule,
        *,
        held: Callable[[], str] = lambda: "",
    ) -> None:
        self._control, self._hold = control, held
        self._held = ""  # reason for which the last commit published nothing
        self._broken = ""  # numbers of the newest copy of the model that are not finite
        self._checkpoint, self._publisher = checkpoint, publisher
        self._schedule = schedule
        self._marks = ChangeMarks(first, saves=checkpoint is not None, publishes=publisher is not None)
        self.dirty, self.unsaved = publisher is not None, False
        self._missed = False  # the last commit published nothing, because a push was under way
        self._ahead: CopyAhead | None = None  # rows of a complete version that has not begun
        self._at_once = False  # the next complete version is copied at its boundary
        self._ending = False
        self.versions = self.rows = self.complete = 0

    @property
    def wanted(self) -> bool:
        """Tell if there is a place to commit to."""
        return self._checkpoint is not None or self._publisher is not None

    @property
    def due(self) -> Due:
        """Commit that the intervals ask for by now."""
        missed = self._missed and self._publisher is not None and not self._publisher.busy
        if not self.wanted or not (self._schedule.commit or missed):
            return Due.NOTHING
        if self._held and not self._hold():
            return Due.RELEASED
        writing = self._checkpoint is not None and self._checkpoint.busy
        if writing or not self._schedule.checkpoint:
            return Due.PUBLISH
        tables = self._checkpoint.tables if self._checkpoint is not None else None
        if tables is None or (tables.copied and (tables.copying or not tables.large)):
            return Due.ALL
        return Due.PUBLISH if tables.copying else Due.AHEAD

    def changed(self) -> None:
        """Note that the run has learned or read something."""
        self.dirty = self.unsaved = True

    def publishes(self, due: int) -> bool:
        """Tell if the commit that rank 0 asks for (`Due`) has something for a version."""
        wanted = due == Due.RELEASED or (due != Due.NOTHING and self.dirty)
        return self._publisher is not None and wanted

    def begins(self, due: int) -> bool:
        """Tell if the commit that rank 0 asks for (`Due`) has something to do. Alike on every rank.

        The version of a log that falls silent may have gone ahead of the checkpoint: that follows alone.
        """
        saves = due in (Due.ALL, Due.AHEAD) and self._checkpoint is not None and self.unsaved
        return saves or self.publishes(due)

    @property
    def written(self) -> bool:
        """True if a checkpoint has begun and this rank's files are written. Raises DiskFullError."""
        return self._checkpoint is not None and self._checkpoint.written

    @property
    def push(self) -> Push:
        """State of this rank's push."""
        return self._publisher.flag if self._publisher is not None else Push.IDLE

    @property
    def counts(self) -> dict[str, Any]:
        """Versions and rows that were published, as nested counters; rank 0 counts for all."""
        if self._control.rank != 0:
            return {}
        return {"published": {"versions": self.versions, "rows": self.rows, "complete": self.complete}}

    def commit(self, state: CommitState) -> bool:
        """Steps 1 to 5 (see the module's docstring). Collective.

        Returns:
            True if the push of a version has begun.
        """
        # 1 finish the previous publish; a model that has learned too little, or is held, stays here
        busy = self._publisher is not None and self._publisher.busy
        if state.publish:
            self._held = state.held
        may = state.publish and not busy and not self._held and not self._held_back(state.examples)
        publish = self._publisher is not None and may
        if self._publisher is not None and publish:
            self._publisher.serve(state.champion)
            publish = not self._publisher.full or self._copied(state)
        else:
            self._ahead = None
        snapshot = self._copy_of(state) if publish else None
        publish = snapshot is not None
        if self._checkpoint is not None and state.checkpoint is not None:
            # 2 the checkpoint
            if self._checkpoint.busy:
                self._finish_checkpoint()
            self._checkpoint.begin(self._completed(state, state.checkpoint, begins=publish))
            self._marks.save(state.boundary)
            self.unsaved = False
            self._schedule.began(state.began_s)
        if self._publisher is not None and snapshot is not None:
            # 5 push in the background
            self._marks.push(state.boundary)
            committed = self._checkpoint.kept.examples if self._checkpoint is not None else 0
            needed = self._checkpoint.kept.version if self._checkpoint is not None else None
            self._publisher.begin(snapshot, learned=state.examples, committed=committed, needed=needed)
        self._forget(state)
        if self._checkpoint is not None and state.ahead:
            self._checkpoint.ahead(state.boundary.tables)
        if state.publish:
            self._missed = busy
            self.dirty = busy or self._ahead is not None
            self._schedule.committed()
        return publish

    def _copy_of(self, state: CommitState) -> VersionSnapshot | None:
        """Copy a version; None: some rank has a number that is not finite. Collective."""
        assert self._publisher is not None and state.snapshots is not None
        began_s = time.monotonic()
        since = None if self._publisher.full else self._marks.published
        assert since is not None or self._publisher.full
        taker = state.snapshots if self._ahead is None else replace(state.snapshots, copied=self._ahead)
        snapshot = taker.take(state.steps, since)
        self._ahead, self._at_once = None, False
        PUBLISH_COPY_SECONDS.observe(time.monotonic() - began_s)
        broken = ""
        if self._control.gather(np.array([bool(snapshot.broken)])).any():
            broken = next(filter(None, self._control.gather_json(snapshot.broken)))
        if broken and not self._broken:
            LOG.error(
                "no version is published: numbers of the model are not finite (%s); servers stay with the "
                "last version. `livectr versions rollback --and-train` goes back to a model that is whole",
                broken,
            )
        if self._broken and not broken:
            LOG.info("all numbers of the model are finite again: versions are published")
        self._broken = broken
        PUBLISH_HELD.labels("not_finite").set(bool(broken))
        WITHHELD_VERSIONS.inc(bool(broken))
        return None if broken else snapshot

    def copy(self) -> None:
        """Copy some rows of a complete version or a checkpoint, at any step boundary before their own."""
        if self._ahead is not None:
            self._ahead.advance()
        if self._checkpoint is not None and not self._checkpoint.tables.copied:
            self._checkpoint.ahead()

    def _copied(self, state: CommitState) -> bool:
        """Tell if every rank has copied nearly all of a complete version; begin that if not. Collective."""
        assert state.snapshots is not None
        if self._ahead is not None and self._ahead.champion != state.champion:
            self._ahead = None
        at_once = self._at_once or self._ending
        if self._ahead is None and not at_once:
            self._ahead = state.snapshots.ahead(state.boundary)
            if self._ahead is not None:
                self._marks.copy_from(state.boundary)
        done = at_once or self._ahead is None or self._ahead.done
        return bool(self._control.gather(np.array([done])).all())

    def complete_checkpoint(self, written: Collection[bool]) -> bool:
        """Take steps 3 and 4, once every rank's files are written. Collective.

        With an object store the files must be stored there, too.

        Args:
            written: `written` of every rank.

        Returns:
            True if a checkpoint exists now.
        """
        if not all(written):
            return False
        assert self._checkpoint is not None
        if self._checkpoint.advance() is None:
            return False
        self._schedule.saved()
        return True

    def _finish_checkpoint(self) -> None:
        assert self._checkpoint is not None
        self._checkpoint.finish()
        self._schedule.saved()

    def _completed(self, state: CommitState, content: CheckpointState, *, begins: bool) -> CheckpointState:
        """Content of a generation with the cursor and counts of publishing, and what Redis lacks."""
        content = replace(content, counts=summed([content.counts, self.counts]))
        if self._broken and not content.quality.get("held"):
            content = replace(content, quality={**content.quality, "held": f"not finite: {self._broken}"})
        if self._publisher is None:
            return content
        cursor = self._publisher.cursor(content.step, begins=begins)
        if self._marks.published is None:  # what that version lacks is not known any more
            cursor = replace(cursor, served=0, served_row_set="")
        if cursor.served and self._marks.published is not None and state.snapshots is not None:
            content = replace(content, unpublished=state.snapshots.keys_since(self._marks.published))
        return replace(content, cursor=asdict(cursor))

    def _held_back(self, examples: int) -> bool:
        """Tell if a model that has learned so many examples is not published."""
        return self._publisher is not None and examples < self._publisher.least_examples

    def _may(self, examples: int) -> bool:
        """Tell if the last commit could publish a model that has learned so many examples."""
        return not self._held and not self._held_back(examples)

    def _forget(self, state: CommitState) -> None:
        """Free change lists; a reader whose lists were too long takes all rows the next time. Collective."""
        dropped = self._marks.forget(state, self._control)
        if dropped.checkpoint and self._checkpoint is not None:
            LOG.info("changes are more than rows: the next checkpoint is complete")
            self._checkpoint.begin_again()
        if dropped.version and self._publisher is not None:
            LOG.warning(
                "changes are more than rows, or more have expired than there are, while nothing is "
                "published: the next version is complete, and removes expired users and keys from Redis"
            )
            self._at_once, self._ahead = self._ahead is not None, None
            if not self._publisher.busy:
                self._publisher.begin_again()

    def observe(self, pushes: list[int], examples: int) -> None:
        """Step 6: flip when every rank's push has arrived, and note a version that was flipped.

        Args:
            pushes: state of every rank's push (`Push`).
            examples: learned so far.
        """
        if self._publisher is None:
            return
        busy = self._publisher.busy
        published = self._publisher.observe(pushes)
        if published is not None:
            self._marks.flip()
            self.versions += 1
            self.rows += published.rows
            self.complete += published.full
        elif not self._publisher.busy and self._may(examples) and (busy or self._publisher.full):
            self.dirty = True  # it failed or was lost: the next commit repeats it, even if no event comes
        if self._marks.published is None and not self._publisher.busy and not self._publisher.full:
            self._publisher.begin_again()

    def finish(self, state: CommitState, *, stopped: bool = False) -> None:
        """Commit the end of the run and see its version flipped. Collective.

        The checkpoint does not wait for Redis. After it, Redis gets some time for the last version: little if
        the process was asked to stop.
        """
        if not self.wanted:
            return
        self._ending = True
        began = self._commit_whole(state)
        limit_s = STOP_DEADLINE_S if stopped else LAST_PUBLISH_DEADLINE_S
        deadline = time.monotonic() + limit_s
        while self._publisher is not None:
            served = self.versions
            self._drain(state.examples, deadline, patient=not stopped)
            if began and self.versions > served:
                return
            if self._held:
                LOG.warning("the last version was not published, as versions are held (%s)", self._held)
                return
            if self._broken:
                LOG.warning("the last version was not published: numbers of the model are not finite")
                return
            if self._held_back(state.examples):
                LOG.warning(
                    "nothing was published: the model has learned %d examples, and must have learned %d",
                    state.examples,
                    self._publisher.least_examples,
                )
                return
            if self._publisher.busy or self._control.broadcast_json(time.monotonic() > deadline):
                LOG.warning("the last version was not published; the next run publishes it")
                return
            if began:
                time.sleep(0.5)
            held = self._control.broadcast_json(self._hold())
            began = self._commit_whole(replace(state, began_s=time.monotonic(), held=held))

    def _commit_whole(self, state: CommitState) -> bool:
        """Commit, and wait for the checkpoint."""
        began = self.commit(state)
        if self._checkpoint is not None and self._checkpoint.busy:
            self._finish_checkpoint()
        return began

    def _drain(self, examples: int, deadline: float, *, patient: bool) -> None:
        """Exchange states of pushes until no version is in flight. Collective.

        Args:
            examples: learned by all ranks.
            deadline: time.monotonic() of rank 0 after which a Redis that does not answer is given up.
            patient: wait past the deadline while Redis still answers.
        """
        while self._publisher is not None and self._publisher.busy:
            late = time.monotonic() > deadline
            states = self._control.gather(np.array([self._publisher.push.state, late]))
            self.observe(states[:, 0].tolist(), examples)
            if states[0, 1] and (not patient or Push.UNKNOWN in states[:, 0]):
                return
            time.sleep(0.002)
