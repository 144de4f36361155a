"""Which examples make the next global batch: the same for any number of ranks and any timing.

Examples carry an `order` (an event time), and every partition emits them in rising order. The one global
sequence is that of (order, partition, number inside the partition). A batch is the next `batch_size` of it
that cannot be disturbed any more: their order lies before the frontier, which is the least order that a
later example of any partition can have. So a batch is a function of the logs alone.

`cut` is the policy, a pure function; `Batcher` runs it on every rank over two small all-gathers: a header,
and the orders of what is ready.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from livectr.trainer.comm.control import Control

I64 = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
"""The frontier of a rank whose partitions will give nothing more for now."""


@dataclass(frozen=True)
class Cut:
    """The next batch: how many of its first ready examples each rank takes.

    counts: int64[N].
    sequence: int64[B]; sequence[i] is the row, in rank-major order, of the batch's i-th example in the global
        sequence.
    """

    counts: I64
    sequence: I64


def cut(
    orders: Sequence[I64],
    partitions: Sequence[I64],
    *,
    frontier: int,
    ended: bool,
    batch_size: int,
    interval_ms: int | None,
) -> Cut | None:
    """The next batch, or None while it is not settled.

    Args:
        orders: per rank, order of its first min(batch_size, ready) examples, non-decreasing.
        partitions: per rank, the partition of each of them.
        frontier: every example that is not ready yet has order ≥ frontier, on every rank.
        ended: no example will come any more, so that a partial batch is as full as it gets.
        batch_size: B, over all ranks.
        interval_ms: width of an event-time tick; a batch does not cross from one tick into the next, and a
            tick that is complete is cut even if it does not fill a batch. None: only full batches, until
            everything has ended.
    """
    order = np.concatenate(orders)
    settled = np.ones(len(order), bool) if ended else order < frontier
    if not settled.any():
        return None
    rank = np.repeat(np.arange(len(orders)), [len(o) for o in orders])
    row = np.flatnonzero(settled)
    row = row[np.lexsort((np.concatenate(partitions)[row], order[row]))]
    batch = row[:batch_size]
    if interval_ms is not None:
        tick = order[batch] // interval_ms
        batch = batch[tick == tick[0]]
    if len(batch) < batch_size and not ended:
        complete = interval_ms is not None and frontier // interval_ms > order[batch[0]] // interval_ms
        if not complete:
            return None
    counts = np.bincount(rank[batch], minlength=len(orders)).astype(np.int64)
    # Each rank takes a prefix of its offers, so the batch's rank-major rows are its offers in rising order.
    return Cut(counts, np.argsort(np.argsort(batch)))


class Ready(Protocol):
    """What the batcher asks of an example source."""

    @property
    def frontier(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    def poll(self, max_wait_s: float) -> bool: ...

    def orders(self, limit: int) -> tuple[I64, npt.NDArray[np.int32]]: ...


@dataclass(frozen=True)
class Flags:
    """What a rank tells the others with its header, besides its examples."""

    stop: bool = False
    """It was asked to end."""
    quiet: bool = False
    """Nothing has come for so long that it would end."""
    due: int = 0
    """What it thinks should be committed now (trainer.commits.Due); rank 0's word counts."""
    publish: int = 0
    """State of its push (trainer.publish.publisher.Push)."""
    rows: int = 0
    """Rows it has read."""
    unusable: int = 0
    """Rows of these that cannot be used."""
    suspect: bool = False
    """Too many of its rows cannot be used (trainer.stream.data_watch)."""


@dataclass(frozen=True)
class Round:
    """What all ranks know after one exchange; every rank holds the same."""

    flags: tuple[Flags, ...]
    cut: Cut | None
    ended: bool
    """Every source has ended and nothing is left to train."""
    moved: bool
    """Some rank's source moved since the round before."""


class Batcher:
    """Cuts the global batches of one rank's source together with the other ranks.

    Args:
        wait_s: how long a rank that has nothing to offer waits for events before it exchanges again.
    """

    def __init__(
        self,
        source: Ready,
        control: Control,
        *,
        batch_size: int,
        interval_ms: int | None = None,
        wait_s: float = 0.05,
    ) -> None:
        self.source = source
        self.control = control
        self.batch_size = batch_size
        self.interval_ms = interval_ms
        self.wait_s = wait_s
        self._wait = False

    def round(self, flags: Flags) -> Round:
        """Fetch what is needed, exchange headers, cut. Collective."""
        moved = self._fetch()
        order, partition = self.source.orders(self.batch_size)
        frontier, ended = self.source.frontier, self.source.ended
        head = np.array([len(order), frontier, ended, moved, *astuple(flags)], np.int64)
        heads = self.control.gather(head)
        counts, common = heads[:, 0], int(heads[:, 1].min())
        all_ended = bool(heads[:, 2].all())
        found = None
        if counts.sum() >= self.batch_size or (counts.any() and (all_ended or self.interval_ms is not None)):
            mine = np.stack([order, partition.astype(np.int64)], axis=1)
            offers = self.control.gather_ragged(mine, counts)
            found = cut(
                [o[:, 0] for o in offers],
                [o[:, 1] for o in offers],
                frontier=common,
                ended=all_ended,
                batch_size=self.batch_size,
                interval_ms=self.interval_ms,
            )
        self._wait = found is None
        return Round(
            flags=tuple(_flags(row) for row in heads[:, 4:]),
            cut=found,
            ended=all_ended and not counts.any(),
            moved=bool(heads[:, 3].any()),
        )

    def _fetch(self) -> bool:
        """Poll unless a whole batch is settled on this rank: then more events would only pile up in memory.

        The rank that holds the common frontier back always polls, so no two ranks wait for each other.
        """
        order, _ = self.source.orders(self.batch_size)
        settled = int(np.searchsorted(order, self.source.frontier))
        if settled >= self.batch_size:
            return False
        return self.source.poll(self.wait_s if self._wait and not self.source.ended else 0.0)


def _flags(row: I64) -> Flags:
    stop, quiet, due, publish, rows, unusable, suspect = row.tolist()
    return Flags(bool(stop), bool(quiet), due, publish, rows, unusable, bool(suspect))
