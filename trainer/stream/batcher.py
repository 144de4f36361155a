"""Merge of all ranks' examples into global batches: the same for any number of ranks and any timing.

Every partition emits its examples in rising `order` (an event time). The global sequence is sorted by (order,
partition, number inside the partition). A watermark, the frontier, is the least order that a later example of
any partition can have. A batch is the next examples of the sequence below the frontier, as many as the ramp
says (trainer.ramp), so it is a function of the logs alone.

On a live log there may be a longest wait. A batch that is not full when it has passed is cut as it is, but
not while a run catches up: as long as the logs hold a batch of unread rows, only full batches are cut.

Where a clock or the end of a log took part all the same, the batch is noted by the number of examples of each
partition (trainer.stream.order_log). A batcher that follows such a log cuts these batches as they were, and
all others by the frontier that no clock moves.

A rank that learns alone cuts many small batches at once, as a block: to cut one takes longer than to learn
it. A block has as many batches of one size as are ready, so that its batches are those that would have been
cut one by one.

Finals (ingest.join.label_join) ride along: they take no example's place, and a batch has at most as many
finals as it may have examples. Of a block they are rows like others, of which it may have `BLOCK`.

`trainer.stream.cut` is the policy. `Batcher` runs it on every rank over two small all-gathers: a header with
a sample of the examples that are ready, and the orders of those that the batch may hold.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from livectr.ingest.common_features import FEW
from livectr.trainer.comm.control import Control
from livectr.trainer.ramp import BatchRamp
from livectr.trainer.stream.cut import NEVER, SAMPLES, Cut, block, cut, decided, needed, sample
from livectr.trainer.stream.header import WIDTH, Flags, Header, Headers
from livectr.trainer.stream.order_log import BatchSettings, Begun, Decided, OrderLog

LOG = logging.getLogger(__name__)
POLL_ROWS = 8192
"""Rows that a poll takes, about, or twice a batch if that is more.

More would be learned for minutes while the lag of the log and the rows that are read stand still, and every
checkpoint would write them.
"""
BLOCK = 2048
"""Examples of a block, at most. More would let commits wait for it."""
I64 = npt.NDArray[np.int64]


class Ready(Protocol):
    """Example source, as the batcher reads it."""

    @property
    def frontier(self) -> int:
        """Watermark: later examples have at least this order."""

    @property
    def strict_frontier(self) -> int:
        """Frontier that does not depend on the clock."""

    @property
    def ended(self) -> bool:
        """True when no example will become ready any more."""

    @property
    def topic_count(self) -> int:
        """Number of event topics."""

    def release(self) -> None:
        """Let the clock decide from here on."""

    def first_of(
        self, counts: Mapping[int, int]
    ) -> tuple[I64, npt.NDArray[np.int32], npt.NDArray[np.bool_]] | None:
        """Orders, partitions and finals of the first examples of some partitions; None: not ready.

        Args:
            counts: partition → number of examples.
        """

    def poll(self, max_wait_s: float, rows: int | None = None) -> bool:
        """Read what has arrived, and wait at most so many seconds for a first record; True if it moved.

        Args:
            max_wait_s: bound in seconds.
            rows: leave further records to the next call once there are so many; None: take all.
        """

    def orders(self, limit: int) -> tuple[I64, npt.NDArray[np.int32]]:
        """Orders i64[k] and partitions i32[k] of the first k ≤ limit ready examples, which stay."""

    def finals(self, limit: int) -> npt.NDArray[np.bool_]:
        """Finals among the same examples, bool[k]."""


@dataclass(frozen=True)
class Round:
    """Result of one exchange, the same on every rank.

    Attributes:
        flags: of each rank.
        cut: the next batch; None: not ready yet.
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
        seen, steps: examples and batches that were cut before, by earlier processes of the run.
        finals: the source has finals.
        times: when a batch is cut before it is full.
        follows: batches of another run that are formed again; None: this run decides.
        recorded: keep for `take` what a clock or the end of a log has decided.
        together: number of examples that the next block may have; None: each batch is cut alone.
        until: step after which the run ends; None: none.

    Raises:
        ConfigError: the other run's batches had other settings.
    """

    def __init__(
        self,
        source: Ready,
        control: Control,
        *,
        ramp: BatchRamp,
        seen: int = 0,
        steps: int = 0,
        finals: bool = False,
        times: Times = Times(),
        follows: OrderLog | None = None,
        recorded: bool = False,
        together: Callable[[], int] | None = None,
        until: int | None = None,
    ) -> None:
        self.source = source
        self.control = control
        self.ramp = ramp
        self.seen, self.steps = seen, steps
        self.finals = finals
        settings: BatchSettings = dict(
            batch_size=ramp.most,
            batch_ramp=ramp.first,
            batch_interval_ms=times.interval_ms,
        )
        self.first_step = steps
        self._began: Begun | None = Begun(steps, settings)
        self._noted: dict[int, dict[int, int]] = {}
        self._recorded, self._follows = recorded, follows
        if follows is not None:
            follows.check(settings, source.topic_count)
        self._times = times
        alone = follows is not None or times.interval_ms is not None or control.world > 1
        self._together, self._until = None if alone else together, until
        self._wait = self._paused = False
        self._settled_s: float | None = None
        """Instant of time.monotonic() since which an example below the rank's frontier has waited."""

    def round(self, flags: Flags) -> Round:
        """Poll the source, exchange headers, cut. Collective.

        Args:
            flags: this rank's.
        """
        if self._follows is not None and self.steps >= self._follows.until:
            self._release("")
        size = self.ramp.size(self.seen)
        limit = 2 * size if self.finals else size
        chosen = self._follows.cuts.get(self.steps) if self._follows is not None else None
        moved = self._fetch(limit, chosen)
        rows = self._rows(limit)
        frontier, strict, ended = self.source.frontier, self.source.strict_frontier, self.source.ended
        own = self._chosen_rows(chosen) if chosen is not None else None
        header = Header(
            ready=rows.shape[1],
            frontier=frontier,
            strict=strict,
            ended=ended,
            moved=moved,
            overdue=self._is_overdue(rows[0], frontier),
            chosen=-1 if own is None else own.shape[1],
        )
        gathered = self.control.gather(np.concatenate([header.encode(flags), sample(rows, limit).ravel()]))
        heads, samples = Headers.decode(gathered[:, :WIDTH]), gathered[:, WIDTH:].reshape(-1, 2, SAMPLES)
        all_ended = bool(heads.ended.all())
        next_cut: Cut | None = None
        if chosen is None:
            next_cut = self._block(size, min(frontier, strict)) or self._cut(rows, heads, samples, size)
        elif own is not None and (heads.chosen >= 0).all():
            next_cut = self._chosen(own, heads.chosen, chosen)
        if next_cut is not None:
            if self._recorded and not next_cut.natural:
                self._noted[self.steps] = next_cut.of_partition
            self.seen += next_cut.examples
            self.steps += next_cut.parts
            self._settled_s = None
        elif all_ended and self._follows is not None:
            self._release(f"the log ends at step {self.steps}, before step {self._follows.until}")
            all_ended = False
        self._wait = next_cut is None
        self._paused = any(flags.paused for flags in heads.flags)
        return Round(
            flags=heads.flags,
            cut=next_cut,
            ended=all_ended and not heads.ready.any(),
            moved=bool(heads.moved.any()),
        )

    def take(self) -> Decided:
        """Return the news since the last call."""
        news = Decided(self._began, self._noted)
        self._began, self._noted = None, {}
        return news

    def _block(self, size: int, below: int) -> Cut | None:
        """Cut a block of whole batches; None if not even two are ready.

        Args:
            size: of a batch.
            below: frontier that no clock and no end of a log has moved, or one before it.
        """
        if self._together is None or size > FEW or not self.steps:  # the first sets the biases
            return None
        most = min(BLOCK, self._together()) // size
        most = min(
            most, self.ramp.alike(self.seen), sys.maxsize if self._until is None else self._until - self.steps
        )
        if most < 2:
            return None
        order, partition = self.source.orders(most * size)
        ready = int(order.searchsorted(below))
        finals = self.source.finals(most * size)[:ready] if self.finals else None
        return block(
            order[:ready],
            partition[:ready].astype(np.int64),
            finals,
            batch_size=size,
            parts=most,
            most=FEW,
        )

    def _cut(self, rows: I64, heads: Headers, samples: I64, size: int) -> Cut | None:
        """Cut by the policy. Collective.

        Args:
            rows: of this rank (see `_rows`).
            heads: of all ranks.
            samples: of all ranks, int64[N, 2, SAMPLES].
            size: of a full batch.
        """
        limit = 2 * size if self.finals else size
        first, strict = int(samples[:, 0].min()), int(heads.strict.min())
        follows = self._follows is not None
        common = strict if follows else int(heads.frontier.min())
        # Rows that fill the batch lie in the logs: it waits for them, and stays a function of the logs.
        catches_up = sum(f.unread for f in heads.flags) >= size
        all_ended = bool(heads.ended.all()) and not follows
        overdue = bool(heads.overdue.any()) and not catches_up and not follows
        below = NEVER if all_ended else common
        partial = all_ended or overdue
        if (interval_ms := self._times.interval_ms) is not None:
            tick_ends = (first // interval_ms + 1) * interval_ms
            partial |= common >= tick_ends
            below = below if overdue else min(below, tick_ends)
        offered = needed(samples[:, 0], samples[:, 1] >> 1, heads.ready, limit=limit, below=below)
        if offered.sum() < size and not (partial and offered.any()):
            return None
        if limit <= SAMPLES:  # every example is a sample
            offers = [own.T[:n] for own, n in zip(samples, offered.tolist(), strict=True)]
        else:
            offers = self.control.gather_ragged(rows.T[: offered[self.control.rank]], offered)
        return cut(
            *_columns(offers, finals=self.finals),
            frontier=common,
            ended=all_ended,
            batch_size=min(size, _settled(offers, common)) if overdue else size,
            interval_ms=interval_ms,
            strict=strict,
            full_size=size,
        )

    def _chosen(self, rows: I64, lengths: I64, counts: Mapping[int, int]) -> Cut | None:
        """The batch that another run had cut here; None if the logs lack its partitions. Collective.

        Args:
            rows: of this rank's examples in it (see `_chosen_rows`).
            lengths: int64[N], number of each rank's.
            counts: partition → number of its examples.
        """
        if int(lengths.sum()) != sum(counts.values()):
            self._release(f"step {self.steps} has examples of partitions that the logs lack")
            return None
        offers = self.control.gather_ragged(rows.T, lengths)
        return decided(*_columns(offers, finals=self.finals), counts)

    def _release(self, complaint: str) -> None:
        """Follow the other run no further."""
        if complaint:
            if self.control.rank == 0:
                LOG.warning("the order log is not followed to its end: %s", complaint)
        else:
            LOG.info("the order log ends at step %d; from here on the clock decides", self.steps)
        self._follows = None
        self.source.release()

    def _rows(self, limit: int) -> I64:
        """Orders, and 2 · partition + final, of this rank's first `limit` examples: int64[2, ≤ limit]."""
        order, partition = self.source.orders(limit)
        final = self.source.finals(limit) if self.finals else False
        return np.stack([order, partition.astype(np.int64) * 2 + final])

    def _chosen_rows(self, counts: Mapping[int, int]) -> I64 | None:
        """`_rows` of this rank's examples in a batch that another run had cut, int64[2, k].

        None: they are not ready.

        Args:
            counts: partition → number of its examples.
        """
        found = self.source.first_of(counts)
        if found is None:
            return None
        order, partition, final = found
        return np.stack([order, partition.astype(np.int64) * 2 + (final if self.finals else 0)])

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

    def _fetch(self, limit: int, chosen: Mapping[int, int] | None) -> bool:
        """Poll unless this rank has a whole batch below its frontier.

        More events would only fill memory. The batch that another run had cut may need more.

        The rank that holds the common frontier back always polls, so no two ranks wait for each other. Where
        its log has ended (`Flags.paused`), the others read on until theirs are so far.

        Returns:
            True if the source moved.
        """
        if chosen is None:
            order, _ = self.source.orders(limit)
            strict = self._follows is not None
            frontier = self.source.strict_frontier if strict else self.source.frontier
            if int(np.searchsorted(order, frontier)) >= limit and not (self._wait and self._paused):
                return False
        elif self.source.first_of(chosen) is not None:
            return False
        wait_s = self._times.poll_s if self._wait and not self.source.ended else 0.0
        return self.source.poll(wait_s, max(POLL_ROWS, 2 * limit))


def _columns(offers: list[I64], *, finals: bool) -> tuple[list[I64], list[I64], list[I64] | None]:
    """Orders, partitions and finals (None: without finals) of each rank's rows int64[n, 2]."""
    marks = [o[:, 1] & 1 for o in offers] if finals else None
    return [o[:, 0] for o in offers], [o[:, 1] >> 1 for o in offers], marks


def _settled(offers: list[I64], frontier: int) -> int:
    """Examples below the frontier, or finals if they are more; at least 1."""
    rows = np.concatenate(offers)
    settled = rows[rows[:, 0] < frontier]
    finals = int(np.count_nonzero(settled[:, 1] & 1))
    return max(1, finals, len(settled) - finals)
