"""Merge of all ranks' examples into global batches: the same for any number of ranks and any timing.

Every partition emits its examples in rising `order` (an event time). The global sequence is sorted by (order,
partition, number inside the partition). A watermark, the frontier, is the least order that a later example of
any partition can have. A batch is the next examples of the sequence below the frontier, as many as the ramp
says (trainer.ramp), so it is a function of the logs alone.

On a live log there may be a longest wait. A batch that is not full when it has passed is cut as it is, but
not while a run catches up: as long as the logs hold a batch of unread rows, only full batches are cut.

Finals (ingest.join.label_join) ride along: they take no example's place, and a batch has at most as many
finals as it may have examples.

`trainer.stream.cut` is the policy. `Batcher` runs it on every rank over two small all-gathers: a header with
a sample of the examples that are ready, and the orders of those that the batch may hold.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from livectr.trainer.comm.control import Control
from livectr.trainer.ramp import BatchRamp
from livectr.trainer.stream.cut import NEVER, SAMPLES, Cut, cut, needed, sample

I64 = npt.NDArray[np.int64]


class Ready(Protocol):
    """Example source, as the batcher reads it."""

    @property
    def frontier(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    def poll(self, max_wait_s: float) -> bool: ...

    def orders(self, limit: int) -> tuple[I64, npt.NDArray[np.int32]]: ...

    def finals(self, limit: int) -> npt.NDArray[np.bool_]: ...


class Flags(NamedTuple):
    """A rank's state in its header, besides its examples.

    Attributes:
        stop: the process was asked to end.
        quiet: nothing has come for so long that the rank would end.
        due: commit that is due by this rank's clock (trainer.commits.Due); rank 0's counts.
        publish: state of the rank's push (trainer.publish.version.Push).
        rows: rows that the rank has read.
        unusable: rows of these that cannot be used.
        suspect: too many of the rank's rows cannot be used (trainer.stream.data_watch).
        sample: the run log is due for a sample (trainer.quality.run_record); rank 0's counts.
        behind: rows of the rank's partitions that it has not read (trainer.stream.backlog).
        unread: the same without partitions that are paused, which are ahead of the others.
        written: the rank's files of the checkpoint that has begun are written.
    """

    stop: bool = False
    quiet: bool = False
    due: int = 0
    publish: int = 0
    rows: int = 0
    unusable: int = 0
    suspect: bool = False
    sample: bool = False
    behind: int = 0
    unread: int = 0
    written: bool = False


@dataclass(frozen=True)
class Round:
    """Result of one exchange, the same on every rank.

    Attributes:
        flags: of each rank.
        cut: the next batch; None if there is none yet.
        ended: every source has ended and nothing is left to train.
        moved: some rank's source moved since the round before.
    """

    flags: tuple[Flags, ...]
    cut: Cut | None
    ended: bool
    moved: bool


@dataclass(frozen=True)
class Times:
    """Times of a batcher.

    Attributes:
        interval_ms: see `cut`.
        longest_s: longest time by the clock that an example below the frontier waits for its batch to be
            full; None: for as long as it takes.
        poll_s: time that a rank with nothing to offer waits for events before it exchanges again.
    """

    interval_ms: int | None = None
    longest_s: float | None = None
    poll_s: float = 0.05


class Batcher:
    """First stage of a batch: cuts it from this rank's source together with the other ranks.

    Args:
        ramp: sizes of batches.
        seen: examples that were cut before, by earlier processes of the run.
        finals: the source has finals.
        times: when a batch is cut before it is full.
    """

    def __init__(
        self,
        source: Ready,
        control: Control,
        *,
        ramp: BatchRamp,
        seen: int = 0,
        finals: bool = False,
        times: Times = Times(),
    ) -> None:
        self.source = source
        self.control = control
        self.ramp = ramp
        self.seen = seen
        self.finals = finals
        self._times = times
        self._wait = False
        self._settled_s: float | None = None
        """Instant of time.monotonic() since which an example below the rank's frontier has waited."""

    def round(self, flags: Flags) -> Round:
        """Poll the source, exchange headers, cut. Collective.

        Args:
            flags: this rank's.
        """
        size = self.ramp.size(self.seen)
        limit = 2 * size if self.finals else size
        moved = self._fetch(limit)
        rows = self._rows(limit)
        frontier, ended = self.source.frontier, self.source.ended
        late = self._is_overdue(rows[0], frontier)
        head = np.array([rows.shape[1], frontier, ended, moved, late, *flags], np.int64)
        gathered = self.control.gather(np.concatenate([head, sample(rows, limit).ravel()]))
        heads, samples = gathered[:, : len(head)], gathered[:, len(head) :].reshape(-1, 2, SAMPLES)
        ready, common, first = heads[:, 0], int(heads[:, 1].min()), int(samples[:, 0].min())
        all_flags = tuple(_flags(row) for row in heads[:, 5:])
        # Rows that fill the batch lie in the logs: it waits for them, and stays a function of the logs.
        catches_up = sum(f.unread for f in all_flags) >= size
        all_ended, overdue = bool(heads[:, 2].all()), bool(heads[:, 4].any()) and not catches_up
        below = NEVER if all_ended else common
        partial = all_ended or overdue
        if (interval_ms := self._times.interval_ms) is not None:
            tick_ends = (first // interval_ms + 1) * interval_ms
            partial |= common >= tick_ends
            below = below if overdue else min(below, tick_ends)
        offered = needed(samples[:, 0], samples[:, 1] >> 1, ready, limit=limit, below=below)
        next_cut = None
        if offered.sum() >= size or (partial and offered.any()):
            if limit <= SAMPLES:  # every example is a sample
                offers = [own.T[:n] for own, n in zip(samples, offered.tolist(), strict=True)]
            else:
                offers = self.control.gather_ragged(rows.T[: offered[self.control.rank]], offered)
            next_cut = cut(
                [o[:, 0] for o in offers],
                [o[:, 1] >> 1 for o in offers],
                [o[:, 1] & 1 for o in offers] if self.finals else None,
                frontier=common,
                ended=all_ended,
                batch_size=min(size, _settled(offers, common)) if overdue else size,
                interval_ms=interval_ms,
            )
        if next_cut is not None:
            self.seen += next_cut.examples
            self._settled_s = None
        self._wait = next_cut is None
        return Round(
            flags=all_flags,
            cut=next_cut,
            ended=all_ended and not ready.any(),
            moved=bool(heads[:, 3].any()),
        )

    def _rows(self, limit: int) -> I64:
        """Orders, and 2 · partition + final, of this rank's first `limit` examples: int64[2, ≤ limit]."""
        order, partition = self.source.orders(limit)
        final = self.source.finals(limit) if self.finals else False
        return np.stack([order, partition.astype(np.int64) * 2 + final])

    def _is_overdue(self, order: I64, frontier: int) -> bool:
        """Return true if the rank's first example has been below its frontier for longer than it may wait."""
        if self._times.longest_s is None:
            return False
        if not len(order) or order[0] >= frontier:
            self._settled_s = None
            return False
        now = time.monotonic()
        self._settled_s = now if self._settled_s is None else self._settled_s
        return now - self._settled_s >= self._times.longest_s

    def _fetch(self, limit: int) -> bool:
        """Poll unless this rank has a whole batch below its frontier: more events would only fill memory.

        The rank that holds the common frontier back always polls, so no two ranks wait for each other.

        Returns:
            True if the source moved.
        """
        order, _ = self.source.orders(limit)
        settled = int(np.searchsorted(order, self.source.frontier))
        if settled >= limit:
            return False
        return self.source.poll(self._times.poll_s if self._wait and not self.source.ended else 0.0)


def _settled(offers: list[I64], frontier: int) -> int:
    """Examples below the frontier, or finals if they are more; at least 1."""
    rows = np.concatenate(offers)
    settled = rows[rows[:, 0] < frontier]
    finals = int(np.count_nonzero(settled[:, 1] & 1))
    return max(1, finals, len(settled) - finals)


def _flags(row: I64) -> Flags:
    stop, quiet, due, publish, rows, unusable, suspect, sample, behind, unread, written = row.tolist()
    read = rows, unusable, bool(suspect), bool(sample), behind, unread
    return Flags(bool(stop), bool(quiet), due, publish, *read, bool(written))
