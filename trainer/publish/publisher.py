"""Publishing a version: copied at a step boundary, pushed in the background, flipped when all ranks are done.

The steps after a commit's checkpoint (trainer.commits numbers them 1 to 6):

    5  every rank copies its changes since the last version and pushes them to Redis from a thread;
    6  when every rank's push has arrived, rank 0 flips the manifest: from now on the version is served.

Ranks learn of each other's pushes from flags in the batcher's header (`Push`), so training never waits. At
most one version is under way (trainer.publish.push). Meanwhile commits publish nothing, and changes add up.

A complete version is written under a fresh row set: at the start, unless it is known in which rows Redis and
the checkpoint differ (trainer.publish.log); when Redis is found emptied; when the champion has changed. A row
set has the values of one champion, so that requests under the version before continue with its rows.

The outcome of a push or a flip that fails is UNKNOWN: Redis may have carried it out, or do so later. Rank 0
finds out, however long Redis is away: it takes a new epoch, which fences out all earlier commands
(trainer.publish.fence), and then reads the manifest. Until then nothing is begun.

    flipped         the version counts
    not flipped     the next commit repeats it under the same number, which no reader has seen
    Redis emptied   the number is skipped, since a reader may have seen it
    rolled back     the numbers up to the rollback's are skipped; the next version is complete

A held namespace (store.hold) refuses a flip; the version is repeated once the hold is gone. A rollback
writes under an epoch of its own and leaves the owner as it is. So a trainer that finds itself fenced takes a
new epoch if the owner is still its own word, and is told to end if it is not.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial
from threading import Event

import numpy as np
import numpy.typing as npt

from livectr.store.evictions import Evictions
from livectr.store.hold import Hold
from livectr.store.manifest import Freshness, VersionManifest
from livectr.trainer.comm.control import Control
from livectr.trainer.part import Part
from livectr.trainer.publish import telemetry
from livectr.trainer.publish.delays import Delays
from livectr.trainer.publish.draft import Draft, Learning, ShareNotice
from livectr.trainer.publish.garbage import GarbageCollector
from livectr.trainer.publish.lineage import Lineage
from livectr.trainer.publish.log.entries import LogEntry, PublishLog
from livectr.trainer.publish.log.resumption import Resumption
from livectr.trainer.publish.push import PushStage, Share
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import FencedError, HeldError
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.takeover import Claimant, claim_namespace
from livectr.trainer.publish.version import Pending, Published, PublishedModel, Push, VersionSnapshot
from livectr.trainer.publish.watch import PublishedWatch

LOG = logging.getLogger(__name__)
COLLECT_AFTER_S = 5.0
"""Time after a flip in which rows of the row set before stay, for requests that began under it."""
I64 = npt.NDArray[np.int64]


class Publisher(Part):
    """Publishes versions of one rank; `start`, `begin` and `observe` run alike on every rank.

    Args:
        model: named in every manifest.
        min_examples: nothing is published before the model has learned so many.
        collect_after_s: time between a flip and the removal of what came before it.
        lookout: rank 0's check that Redis still holds the version.

    Attributes:
        lineage: version that is served, and numbers of the next.
        push: stage of the version under way.
        log: versions whose changed keys Redis keeps, for a process that resumes from a checkpoint.
        resumption: lists of keys that count as changed (trainer.publish.log.missed); None: no lists.
        flipped: versions that were flipped after the cursor was written that `start` got.
        least_examples: examples that the model must have learned to be published: min_examples, and the
            examples of the version that an earlier process of this run has published.
    """

    def __init__(
        self,
        store: RedisStore,
        control: Control,
        model: PublishedModel,
        *,
        min_examples: int = 0,
        collect_after_s: float = COLLECT_AFTER_S,
        lookout: PublishedWatch | None = None,
    ) -> None:
        self.store, self.control = store, control
        self.lineage = Lineage()
        self.least_examples = min_examples
        self._model = model
        self._unpublished, self._since_begin = Freshness(), Freshness()
        self.delays = Delays()
        self._closing = Event()
        self.log, self.flipped = PublishLog(), 0
        self.resumption: Resumption | None = None
        self._garbage = GarbageCollector(store, self.log, collect_after_s, self._closing)
        self.push = PushStage(store, control.apart(), self._garbage, self._closing)
        self._lookout = (lookout or PublishedWatch(store)) if control.rank == 0 else None

    def start(self, cursor: Cursor | None, *, learned: int = 0, take_over: bool = False) -> None:
        """Fence out every earlier trainer; resume with deltas if that is possible. Collective.

        Args:
            cursor: of the checkpoint that this run resumes from.
            learned: examples of that checkpoint.
            take_over: replace another run's version, or a newer version.

        Raises:
            MismatchError: this run may not take over (trainer.publish.succession); nothing has been touched.
            ConnectError: Redis does not answer.
        """
        claimant = Claimant(cursor, learned, self._model.fingerprint, take_over)
        claim = claim_namespace(self.store, self._lookout, self.control, claimant)
        self.lineage = Lineage.resumed(claim.version, claim.run_id, claim.manifest.encode())
        self.least_examples = max(self.least_examples, claim.least_examples)
        if self.last is not None:
            self.flipped = self.last.version - cursor.served if cursor is not None and cursor.served else 1
            self.resumption = claim.resumption
            if claim.resumption is not None:
                self.log.kept |= claim.resumption.log
                self.store.rows.cut_off = claim.resumption.cut_off
                self.lineage.skip_unflipped()
            telemetry.show_published(self.last.version, self.last.created_ms)
        self._watch()

    @property
    def last(self) -> VersionManifest | None:
        """Manifest of the version that is served; None before the first."""
        return self.lineage.last

    @property
    def full(self) -> bool:
        """Tell if the next version must hold everything."""
        return self.lineage.full

    @property
    def busy(self) -> bool:
        """Tell if a version is under way; the same on every rank after `observe`."""
        return self.push.in_flight > 0

    @property
    def hold(self) -> Hold | None:
        """Hold of the namespace, as rank 0 has found it; None on other ranks."""
        return self._lookout.hold if self._lookout is not None else None

    def released(self) -> bool:
        """Tell if an operator has asked the gate to accept its window since the last call. Rank 0."""
        return self._lookout is not None and self._lookout.released()

    @property
    def flag(self) -> Push:
        """State of the push for the batcher's header; LOST also while nothing is under way."""
        lost = self._lookout is not None and self._lookout.lost and not self.full
        return Push.LOST if lost and self.push.state is Push.IDLE else self.push.state

    def trained(self, times_ms: I64) -> None:
        """Rank 0 notes event times of examples that the next version will have learned."""
        self._since_begin = self._since_begin.plus(times_ms)

    def serve(self, champion: str) -> None:
        """Let the next version be complete if it holds another champion than the last.

        Alike on every rank; not while busy.
        """
        if self.last is not None and self.last.champion != champion and not self.full:
            LOG.info("champion %s: the next version is complete", champion)
            self.begin_again()

    def cursor(self, step: int, *, begins: bool = True) -> Cursor:
        """Cursor of a checkpoint at `step`: the version that is about to begin, or the numbers that are used.

        Args:
            step: of the boundary.
            begins: a version begins at this step boundary.
        """
        return self.lineage.cursor(step, self.store.connection.epoch, begins=begins, busy=self.busy)

    def begin(
        self, snapshot: VersionSnapshot, *, learned: int = 0, committed: int = 0, needed: int | None = None
    ) -> None:
        """Step 5: push this rank's share of the next version in the background. Collective; not while busy.

        Args:
            snapshot: of this rank.
            learned: examples of the model.
            committed: examples of the oldest kept checkpoint.
            needed: version that was served when that was begun: the publish log begins there. None: there are
                no checkpoints, and no log.
        """
        self.log.needed = needed
        own = ShareNotice.of(snapshot, self.store.connection.epoch, self.lineage.number + 1)
        shares = [ShareNotice(**share) for share in self.control.gather_json(own.as_json())]
        self.store.connection.epoch = shares[0].epoch
        evictions = self._lookout.evictions if self._lookout is not None else Evictions()
        if self._lookout is not None:
            self._lookout.watch(None)
        self._unpublished = self._unpublished.merged(self._since_begin)
        self._since_begin = Freshness()
        learning = Learning(learned, committed, self._unpublished)
        draft = Draft.of(shares, self.lineage, self._model, snapshot, learning, self.store.space, evictions)
        manifest, rank = draft.manifest, self.control.rank
        entry = LogEntry.of(manifest, draft.rows, self.lineage.base) if needed is not None else None
        pending = Pending(manifest, manifest.to_json(), draft.rows, self.full, snapshot.published, entry)
        blobs = {name: names.ranks[rank] for name, names in draft.content.items()}
        self.push(pending, Share(rank, snapshot, manifest, blobs, self.full, entry))

    def observe(self, flags: Sequence[int]) -> Published | None:
        """Step 6: continue as far as the flags of one header allow. Alike on every rank.

        Args:
            flags: state of every rank's push.

        Returns:
            A version that was just flipped, else None.

        Raises:
            FencedError: another trainer has taken over; on every rank.
        """
        push, pending = self.push, self.push.version
        if pending is None:
            if Push.LOST in flags:
                self._lost(superseded=self._lookout is not None and self._lookout.superseded)
            return None
        if not push.working:
            push.check()
        states = [Push(flag) for flag in flags]
        if Push.FENCED in states:
            push.leave()
            raise FencedError(
                f"another trainer has taken over namespace {self.store.space.namespace!r} "
                f"in Redis at {self.store.url}; this one ends (run one trainer for each namespace)"
            )
        if Push.PUSHING in states:
            return None
        if states[0] is Push.FLIPPED:
            return self._flipped(push.leave())
        if states[0] in (Push.FAILED, Push.LOST, Push.SUPERSEDED):
            self._repeat(push.leave(), states[0])
            return None
        if self.control.rank != 0 or push.working or push.state is not states[0]:
            return None  # an outcome that came after the flags is in the next header
        if Push.UNKNOWN in states:
            push.find_out(pending, self.lineage.text)
        elif push.state is Push.PUSHED:
            # 6 every rank's push has arrived: flip
            before = b"" if pending.full else self.lineage.text
            push.run(partial(self._seal_and_flip, pending, before), then=Push.FLIPPED)
        return None

    def _seal_and_flip(self, pending: Pending, before: bytes) -> None:
        """Seal a version and flip, in the background (step 6)."""
        manifest = pending.manifest
        self.store.seal(manifest, None if pending.full else VersionManifest.from_json(before))
        try:
            self.store.flip(pending.text, manifest.version, before, world=manifest.world)
        except HeldError:
            if self._lookout is not None:
                self._lookout.read_hold()
            raise

    def _lost(self, *, superseded: bool) -> None:
        """Publish everything again: Redis does not hold the last version any more.

        Args:
            superseded: by a rollback, which is no loss.
        """
        self.begin_again()
        if not superseded:
            telemetry.LOST_VERSIONS.inc()

    def _watch(self) -> None:
        """Let the look-out compare Redis with the last version."""
        if self._lookout is not None:
            self._lookout.watch(self.last, self.lineage.text)

    def report(self) -> dict[str, object]:
        """Number of the served version, or None, and `Delays.report`."""
        version = self.last.version if self.last is not None else None
        return {"version": version, "freshness": self.delays.report()}

    def begin_again(self) -> None:
        """Let the next version hold everything, in a fresh row set. Alike on every rank; not while busy."""
        self.lineage.begin_again()

    def close(self) -> None:
        """End the threads, whatever they wait for; a version that was not flipped is left behind."""
        self._closing.set()
        if self._lookout is not None:
            self._lookout.close(self.store.client.interrupt)
        self.push.close()
        self._garbage.close()
        self.store.close()

    def _repeat(self, pending: Pending, outcome: Push) -> None:
        """Give up a version; the next has its number, unless readers may have seen it."""
        self._garbage.failed(pending.manifest)
        if outcome is not Push.FAILED:
            superseded = outcome is Push.SUPERSEDED
            why = "was rolled back" if superseded else "was emptied"
            LOG.warning("Redis at %s %s: the next version is complete", self.store.url, why)
            self._lost(superseded=superseded)
            self.lineage.number = max(pending.manifest.version, self.store.fence.used)
        self._watch()

    def _flipped(self, pending: Pending) -> Published:
        manifest = pending.manifest
        self.lineage.flipped(pending)
        self._unpublished = Freshness()
        if self.control.rank == 0:
            telemetry.show_published(manifest.version, manifest.created_ms)
            self.delays.add(manifest.freshness, time.time_ns() // 1_000_000)
            telemetry.PUBLISH_SECONDS.observe(time.time() - manifest.created_ms / 1000)
            telemetry.PUBLISHED_ROWS.inc(pending.rows)
            telemetry.PUBLISHED_VERSIONS.labels("all" if pending.full else "changed").inc()
            if pending.entry is not None:
                self.log.kept[manifest.version] = pending.entry
            self.log.expire(manifest.row_set, sum(manifest.tables.values()))
            self._garbage.flipped(manifest, full=pending.full)
        for note in pending.published:
            note()
        self.store.rows.cut_off = ()
        self._watch()
        return Published(manifest, pending.rows, pending.full)
