"""Policy of the global cut: pure functions, which every rank computes alike.

    each rank    sample     places in the sequence of some of its ready examples   ─► all-gather
    all ranks    needed     how many of its first examples each rank offers
    each rank               these examples                                         ─► all-gather
    all ranks    cut        the next batch

The global sequence is sorted by (order, partition, number inside the partition). A batch of B examples takes
few of the B that each of N ranks has ready. From the samples all ranks know which suffice: about B, and for
each rank those between two samples. So no rank sorts N·B rows, however unevenly the ranks have them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
"""Frontier of a rank whose partitions give nothing more for now."""
SAMPLES = 64
"""Samples of a rank."""


@dataclass(frozen=True)
class Cut:
    """The next batch, as prefixes of the ranks' ready examples.

    Attributes:
        counts: int64[N], length of each rank's prefix.
        sequence: int64[B]; sequence[i] is the row, in rank-major order, of the batch's i-th example in the
            global sequence.
        order: int64[B], orders of the batch's examples in the global sequence.
        examples: how many of the B are no finals.
        partition: int64[B], partitions of the batch's examples in the global sequence.
        natural: the batch is a function of the logs: no clock and no end of a log took part.
        decided: partition → number of examples, where a log of decisions chose them: they need not be the
            first of the sequence.
        ends: int64[P], ends of the batches, one after the other, that are cut at once: a block
            (`trainer.stream.batcher`); None: it is one batch.
    """

    counts: I64
    sequence: I64
    order: I64
    examples: int
    partition: I64
    natural: bool = True
    decided: Mapping[int, int] | None = None
    ends: I64 | None = None

    @property
    def parts(self) -> int:
        """Number of batches."""
        return 1 if self.ends is None else len(self.ends)

    @property
    def of_partition(self) -> dict[int, int]:
        """Partition → number of the batch's examples."""
        numbers, counts = np.unique(self.partition, return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def sample(rows: I64, limit: int) -> I64:
    """Sample a rank's first ready examples: the first, every so many, and the last.

    Args:
        rows: int64[W, ≤ limit], of each example its order and whatever else.
        limit: most ready examples of a rank.

    Returns:
        int64[W, SAMPLES]; an example may be there twice. NEVER without examples.
    """
    ready = rows.shape[1]
    if not ready:
        return np.full((len(rows), SAMPLES), NEVER)
    return rows[:, _places(np.array([ready]), limit)[0] - 1]


def needed(order: I64, partition: I64, ready: I64, *, limit: int, below: int) -> I64:
    """Count the examples that each rank offers, int64[N].

    They hold the first `limit` examples of the global sequence whose order is less than `below`. They are at
    most `limit` + (N + 1) · the distance of two samples.

    Args:
        order: int64[N, SAMPLES], of the samples.
        partition: int64[N, SAMPLES], of the samples.
        ready: int64[N], examples of each rank that were sampled.
        limit: examples that are needed, at most.
        below: order of the first example that is not needed.
    """
    places = _places(ready, limit)
    apart = places.copy()
    apart[:, 1:] -= places[:, :-1]
    order = order.ravel()
    by = np.lexsort((partition.ravel(), order))
    rows = apart.ravel()[by].cumsum()
    first = by[: min(int(rows.searchsorted(limit)) + 1, int(order[by].searchsorted(below)))]
    passed = np.bincount(first // SAMPLES, minlength=len(ready))
    # Examples between a rank's last sample among the first and its next may belong to the first, too.
    ends = np.hstack([np.zeros((len(ready), 1), np.int64), places, ready[:, None] + 1])
    rank = np.arange(len(ready))
    offered: I64 = np.maximum(ends[rank, passed], ends[rank, passed + 1] - 1)
    return offered


def cut(
    orders: Sequence[I64],
    partitions: Sequence[I64],
    finals: Sequence[I64] | None = None,
    *,
    frontier: int,
    ended: bool,
    batch_size: int,
    interval_ms: int | None,
    strict: int = NEVER,
    full_size: int | None = None,
) -> Cut | None:
    """Choose the examples of the next batch; None if there are too few below the frontier.

    The batch is the shortest prefix of the global sequence with B examples, or with B finals.

    Args:
        orders: int64[≤ B] per rank, non-decreasing: orders of its first ready examples; with finals
            int64[< 2 B].
        partitions: int64[≤ B] per rank: their partitions.
        finals: int64[≤ B] per rank: 1 is a final; None: without finals.
        frontier: every example that is not ready yet has order ≥ frontier, on every rank.
        ended: no more examples will come, so that the last batch may be smaller.
        batch_size: B, over all ranks.
        interval_ms: width of an event-time tick. A batch does not cross from one tick into the next, and a
            complete tick is cut even if it does not fill a batch. None: only full batches until the end.
        strict: frontier that no clock and no end of a log has moved.
        full_size: examples of a full batch, if that is not B.
    """
    order = np.concatenate(orders)
    partition = np.concatenate(partitions)
    row = _in_sequence(order, partition, len(orders))
    order = order[row]
    if not ended:
        order = order[: np.searchsorted(order, frontier)]
    if not len(order):
        return None
    examples = np.arange(1, len(order) + 1)
    if finals is None:
        most = examples
    else:
        examples -= (rides := np.cumsum(np.concatenate(finals)[row[: len(order)]]))
        most = np.maximum(rides, examples)
    size = min(int(np.searchsorted(most, batch_size)) + 1, len(order))
    full, complete = int(most[size - 1]) == batch_size, False
    if interval_ms is not None:
        tick = int(order[0]) // interval_ms
        inside = int(np.searchsorted(order[:size] // interval_ms, tick, "right"))
        full, size = full and inside == size, inside
        complete = frontier // interval_ms > tick
    if not (full or complete or ended):
        return None
    batch = row[:size]
    offered = np.array([len(o) for o in orders], np.int64)
    rank = np.repeat(np.arange(len(orders)), offered)[batch]
    counts = np.bincount(rank, minlength=len(orders)).astype(np.int64)
    # Each rank takes a prefix of its offers; before them lie the rows that lower ranks offered and keep.
    kept: I64 = np.cumsum(offered - counts) - (offered - counts)
    sequence: I64 = batch - kept[rank]
    order = order[:size]
    reached, full_size = int(most[size - 1]), batch_size if full_size is None else full_size
    whole = reached == full_size
    if interval_ms is not None and reached < batch_size:
        whole |= strict // interval_ms > int(order[-1]) // interval_ms
    natural = whole and int(order[-1]) < strict
    return Cut(counts, sequence, order, int(examples[size - 1]), partition[batch], natural)


def block(
    order: I64,
    partition: I64,
    finals: npt.NDArray[np.bool_] | None,
    *,
    batch_size: int,
    parts: int,
    most: int,
) -> Cut | None:
    """The next batches of a rank that cuts alone; None if there are not even two, each full.

    Args:
        order: int64[n], orders of the first examples of the global sequence, all below a frontier that no
            clock and no end of a log has moved.
        partition: int64[n], their partitions.
        finals: bool[n], finals among them; None: there are none.
        batch_size: B, as of `cut`.
        parts: number of batches, at most.
        most: rows of a batch, at most; the block ends before one with more.
    """
    if finals is None:
        ends = np.arange(1, min(parts, len(order) // batch_size) + 1) * batch_size
        rides = 0
    else:
        ends = _ends(np.cumsum(finals), batch_size, parts)
        large = np.diff(ends, prepend=0) > most
        ends = ends[: int(large.argmax())] if large.any() else ends
        rides = int(np.count_nonzero(finals[: ends[-1]])) if len(ends) else 0
    if len(ends) < 2:
        return None
    n = int(ends[-1])
    return Cut(np.array([n]), np.arange(n), order[:n], n - rides, partition[:n], ends=ends)


def _ends(rides: I64, batch_size: int, parts: int) -> I64:
    """Ends of the first batches, each with B examples or with B finals.

    Args:
        rides: int64[n], finals up to and with each row.
        batch_size: B.
        parts: number of batches, at most.
    """
    examples = np.arange(1, len(rides) + 1) - rides
    ends: list[int] = []
    shown = left = 0  # examples and finals of the batches before
    while len(ends) < parts:
        end = 1 + min(
            int(examples.searchsorted(shown + batch_size)), int(rides.searchsorted(left + batch_size))
        )
        if end > len(rides):
            break
        ends.append(end)
        shown, left = int(examples[end - 1]), int(rides[end - 1])
    return np.array(ends, np.int64)


def decided(
    orders: Sequence[I64], partitions: Sequence[I64], finals: Sequence[I64] | None, counts: Mapping[int, int]
) -> Cut:
    """The batch of all rows, which a log of decisions has chosen.

    Args:
        orders: of each rank's examples, as of `cut`.
        partitions: of each rank's examples, as of `cut`.
        finals: of each rank's examples, as of `cut`.
        counts: partition → number of them.
    """
    order, partition = np.concatenate(orders), np.concatenate(partitions)
    sequence = _in_sequence(order, partition, len(orders))
    rides = 0 if finals is None else int(np.concatenate(finals).sum())
    lengths = np.array([len(own) for own in orders], np.int64)
    examples = len(order) - rides
    return Cut(lengths, sequence, order[sequence], examples, partition[sequence], False, counts)


def _places(ready: I64, limit: int) -> I64:
    """Number of examples up to and with each sample, int64[N, SAMPLES], for `ready` ≤ limit of each rank."""
    distance = -(-(limit - 1) // (SAMPLES - 1))
    return np.minimum(1 + distance * np.arange(SAMPLES), ready[:, None])


def _in_sequence(order: I64, partition: I64, ranks: int) -> I64:
    """Sort rows by (order, partition, row): merge the ranks' runs, as one number if both fit into one."""
    if ranks == 1 or not len(order):
        return np.arange(len(order))
    width, first = int(partition.max()) + 1, int(order.min())
    if (int(order.max()) - first + 1) * width > NEVER:
        return np.lexsort((partition, order))
    return np.argsort((order - first) * width + partition, kind="stable")
