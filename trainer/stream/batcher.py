"""Merge of all ranks' examples into global batches: the same for any number of ranks and any timing.

Every partition emits its examples in rising `order` (an event time). The global sequence is sorted by (order,
partition, number inside the partition). A watermark, the frontier, is the least order that a later example of
any partition can have. A batch is the next examples of the sequence below the frontier, as many as the ramp
says (trainer.ramp), so it is a function of the logs alone.

On a live log there may be a longest wait. A batch that is not full when it has passed is cut as it is, but
not while a run catches up: as long as the logs hold a batch of unread rows, only full batches are cut.

Finals (ingest.join.label_join) ride along: they take no example's place, and a batch has at most as many
finals as it may have examples.

`cut` is the policy, a pure function. `Batcher` runs it on every rank over two small all-gathers: a header,
and the orders of the examples that are ready.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from livectr.trainer.comm.control import Control
from livectr.trainer.ramp import BatchRamp

I64 = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
"""Frontier of a rank whose partitions give nothing more for now."""


@dataclass(frozen=True)
class Cut:
    """The next batch, as prefixes of the ranks' ready examples.

    Attributes:
        counts: int64[N], length of each rank's prefix.
        sequence: int64[B]; sequence[i] is the row, in rank-major order, of the batch's i-th example in the
            global sequence.
        order: int64[B], orders of the batch's examples in the global sequence.
        examples: how many of the B are no finals.
    """

    counts: I64
    sequence: I64
    order: I64
    examples: int


def cut(
    orders: Sequence[I64],
    partitions: Sequence[I64],
    finals: Sequence[I64] | None = None,
    *,
    frontier: int,
    ended: bool,
    batch_size: int,
    interval_ms: int | None,
) -> Cut | None:
    """Choose the examples of the next batch; None if there are too few below the frontier.

    The batch is the shortest prefix of the global sequence with B examples, or with B finals.

    Args:
        orders: int64[≤ B] per rank, non-decreasing: orders of its first ready examples; with finals
            int64[< 2 B].
        partitions: int64[≤ B] per rank: their partitions.
        finals: int64[≤ B] per rank: 1 is a final; None: there are none.
        frontier: every example that is not ready yet has order ≥ frontier, on every rank.
        ended: no more examples will come, so that the last batch may be smaller.
        batch_size: B, over all ranks.
        interval_ms: width of an event-time tick. A batch does not cross from one tick into the next, and a
            complete tick is cut even if it does not fill a batch. None: only full batches until the end.
    """
    order = np.concatenate(orders)
    settled = np.ones(len(order), bool) if ended else order < frontier
    if not settled.any():
        return None
    rank = np.repeat(np.arange(len(orders)), [len(o) for o in orders])
    row = np.flatnonzero(settled)
    row = row[np.lexsort((np.concatenate(partitions)[row], order[row]))]
    final = np.zeros(len(order), bool) if finals is None else np.concatenate(finals) != 0
    rides = np.cumsum(final[row])
    most = np.maximum(rides, np.arange(1, len(row) + 1) - rides)  # examples or finals so far
    batch = row[: np.searchsorted(most, batch_size) + 1]
    full = most[len(batch) - 1] == batch_size
    if interval_ms is not None:
        tick = order[batch] // interval_ms
        full &= tick[-1] == tick[0]
        batch = batch[tick == tick[0]]
    if not full and not ended:
        complete = interval_ms is not None and frontier // interval_ms > order[batch[0]] // interval_ms
        if not complete:
            return None
    counts = np.bincount(rank[batch], minlength=len(orders)).astype(np.int64)
    # Each rank takes a prefix of its offers, so the batch's rank-major rows are its offers in rising order.
    examples = int(np.count_nonzero(~final[batch]))
    return Cut(counts, np.argsort(np.argsort(batch)), order[batch], examples)


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
        order, partition = self.source.orders(limit)
        frontier, ended = self.source.frontier, self.source.ended
        late = self._is_overdue(order, frontier)
        head = np.array([len(order), frontier, ended, moved, late, *flags], np.int64)
        heads = self.control.gather(head)
        counts, common = heads[:, 0], int(heads[:, 1].min())
        all_flags = tuple(_flags(row) for row in heads[:, 5:])
        # Rows that fill the batch lie in the logs: it waits for them, and stays a function of the logs.
        catches_up = sum(f.unread for f in all_flags) >= size
        all_ended, overdue = bool(heads[:, 2].all()), bool(heads[:, 4].any()) and not catches_up
        partial = all_ended or overdue or self._times.interval_ms is not None
        next_cut = None
        if counts.sum() >= size or (counts.any() and partial):
            columns = [order, partition.astype(np.int64)]
            if self.finals:
                columns.append(self.source.finals(limit).astype(np.int64))
            offers = self.control.gather_ragged(np.stack(columns, axis=1), counts)
            next_cut = cut(
                [o[:, 0] for o in offers],
                [o[:, 1] for o in offers],
                [o[:, 2] for o in offers] if self.finals else None,
                frontier=common,
                ended=all_ended,
                batch_size=min(size, _settled(offers, common)) if overdue else size,
                interval_ms=self._times.interval_ms,
            )
        if next_cut is not None:
            self.seen += next_cut.examples
            self._settled_s = None
        self._wait = next_cut is None
        return Round(
            flags=all_flags,
            cut=next_cut,
            ended=all_ended and not counts.any(),
            moved=bool(heads[:, 3].any()),
        )

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


def _settled(offers: Sequence[I64], frontier: int) -> int:
    """Examples below the frontier, or finals if they are more; at least 1."""
    settled = np.concatenate([offer[offer[:, 0] < frontier] for offer in offers])
    finals = int(np.count_nonzero(settled[:, 2])) if settled.shape[1] > 2 else 0
    return max(1, finals, len(settled) - finals)


def _flags(row: I64) -> Flags:
    stop, quiet, due, publish, rows, unusable, suspect, sample, behind, unread, written = row.tolist()
    read = rows, unusable, bool(suspect), bool(sample), behind, unread
    return Flags(bool(stop), bool(quiet), due, publish, *read, bool(written))
