"""Ready examples of a rank: a FIFO queue for each partition, and the global sequence over them.

The global sequence is sorted by (order, partition, number in the partition). Its first examples are looked at
by all ranks, which then agree on how many each of them pops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.decode.arrow_rows import concat_rows
from livectr.ingest.join.label_join import Ready
from livectr.ingest.join.payload import cast_saved

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

META = {"#label": pa.float32(), "#order": pa.int64(), "#late": pa.bool_()}
"""Columns of saved examples besides their rows."""
WORDS = "#words"
"""Column of saved examples besides, where the log has labels beside the click."""
PIECES = 64
"""Pieces of a partition's first ready examples, of which the last orders are compared."""
AHEAD = 2
"""Examples that are sorted at once, as a multiple of those that are asked for."""
NO_EXAMPLES = np.empty(0, np.int64), np.empty(0, np.int32)


class ReadyQueue:
    """FIFO queue of examples that are ready for training."""

    def __init__(self) -> None:
        self._parts: deque[Ready] = deque()
        self._start = 0
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, ready: Ready) -> None:
        """Add examples at the back."""
        if len(ready):
            self._parts.append(ready)
            self._rows += len(ready)

    def orders(self, limit: int) -> I64:
        """Orders of the first examples, int64[min(limit, ready)]; they stay in the queue."""
        parts_order, rows, start = [], 0, self._start
        for part in self._parts:
            if rows >= limit:
                break
            parts_order.append(part.order[start : start + limit - rows])
            rows += len(parts_order[-1])
            start = 0
        return np.concatenate(parts_order) if parts_order else np.empty(0, np.int64)

    def finals(self, limit: int) -> Bools:
        """bool[min(limit, ready)], finals among the first examples; they stay in the queue."""
        return np.concatenate([*(part.final for part in self.slices(limit)), np.empty(0, np.bool_)])

    def slices(self, count: int) -> list[Ready]:
        """The first `count` examples; they stay in the queue."""
        ready, start = [], self._start
        for part in self._parts:
            if count <= 0:
                break
            stop = min(start + count, len(part))
            rows = part.rows.slice(start, stop - start)
            own = slice(start, stop)
            words = None if part.words is None else part.words[own]
            ready.append(Ready(rows, part.label[own], part.order[own], part.late[own], words))
            count -= stop - start
            start = 0
        return ready

    def pop(self, count: int) -> list[Ready]:
        """Remove and return the first `count` examples."""
        popped = self.slices(count)
        self._rows -= sum(map(len, popped))
        self._start += count
        while self._parts and self._start >= len(self._parts[0]):
            self._start -= len(self._parts.popleft())
        return popped

    def export(self) -> pa.Table:
        """All examples, for a checkpoint: the columns of their rows, and META."""
        batches = []
        for part in self.slices(len(self)):
            meta = dict(zip(META, (part.label, part.order, part.late), strict=True))
            meta |= {} if part.words is None else {WORDS: part.words}
            columns = [*part.rows.columns, *map(pa.array, meta.values())]
            batches.append(pa.RecordBatch.from_arrays(columns, names=[*part.rows.schema.names, *meta]))
        return pa.Table.from_batches(batches, None if batches else pa.schema(list(META.items())))

    def restore(self, saved: pa.Table, schema: pa.Schema) -> None:
        """Add the examples of `export`.

        Args:
            saved: rows and columns of META.
            schema: of their rows; additional saved columns are dropped.

        Raises:
            MismatchError: a column is missing, because the rows were read for fewer features.
        """
        saved = saved.combine_chunks()
        rows = cast_saved(saved, schema).to_batches()
        names = [*META, *([WORDS] if WORDS in saved.column_names else [])]
        for batch, meta in zip(rows, saved.select(names).to_batches(), strict=False):
            columns = (np.array(column.to_numpy(zero_copy_only=False)) for column in meta.columns)
            self.append(Ready(batch, *columns))


def in_sequence(queues: Mapping[int, ReadyQueue], limit: int) -> tuple[I64, I32]:
    """Look at the first k = min(limit, ready) examples of partitions in the global sequence.

    Args:
        queues: of each partition, by rising number.
        limit: most examples.

    Returns:
        Their orders int64[k] and partitions int32[k].
    """
    parts = [queue.orders(limit) for queue in queues.values()]
    # Before the order that is the last of enough pieces of equal length lie `limit` examples: sort no others.
    piece = 1 + limit // PIECES
    lasts = np.sort(np.concatenate([*(part[piece - 1 :: piece] for part in parts), np.empty(0, np.int64)]))
    if len(lasts) * piece >= limit > 0:
        last = lasts[-(-limit // piece) - 1]
        parts = [part[: part.searchsorted(last, "right")] for part in parts]
    order = np.concatenate([*parts, np.empty(0, np.int64)])
    partition = np.repeat(np.array(list(queues), np.int32), [len(part) for part in parts])
    first = np.argsort(order, kind="stable")[:limit]
    return order[first], partition[first]


@dataclass(frozen=True)
class Popped:
    """Batch of k examples that have left their queues, in the global sequence.

    Args:
        rows: k rows of a `Payload`.
        label: float32[k], as in `Ready`.
        order: int64[k], place in the global sequence.
        partition: int32[k]; equal orders are sorted by it.
        late: bool[k], as in `Ready`.
        words: int64[k], as in `Ready`.
    """

    rows: pa.RecordBatch
    label: npt.NDArray[np.float32]
    order: I64
    partition: I32
    late: Bools
    words: I64 | None = None


class ReadySequence:
    """Ready examples of this rank's partitions in the global sequence.

    Args:
        queues: partition → its queue, by rising number; partitions append to them.
    """

    def __init__(self, queues: Mapping[int, ReadyQueue]) -> None:
        self._queues = queues
        self._selected: tuple[I64, I32] = NO_EXAMPLES  # the first ones, as far as they were sorted

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def sort_again(self) -> None:
        """Note that other examples may have become the first."""
        self._selected = NO_EXAMPLES

    def orders(self, limit: int) -> tuple[I64, I32]:
        """Look at the first k = min(limit, ready) examples.

        Returns:
            Their orders int64[k] and partitions int32[k].
        """
        if len(self._selected[0]) < min(limit, len(self)):
            self._selected = in_sequence(self._queues, AHEAD * limit)
        return self._selected[0][:limit], self._selected[1][:limit]

    def finals(self, limit: int) -> Bools:
        """bool[k], finals among the first k examples (see `orders`)."""
        _, numbers = self.orders(limit)
        found = np.zeros(len(numbers), np.bool_)
        for number, queue in self._queues.items():
            own = numbers == number
            found[own] = queue.finals(int(np.count_nonzero(own)))
        return found

    def first_of(self, counts: Mapping[int, int]) -> tuple[I64, I32, Bools] | None:
        """Look at the first examples of some partitions.

        Args:
            counts: partition → number of examples; other ranks' partitions are ignored.

        Returns:
            Their orders int64[k], partitions int32[k] and finals bool[k]; None while they are not ready.
        """
        order, partition, final = [], [], []
        for number, queue in self._queues.items():
            count = counts.get(number, 0)
            if len(queue) < count:
                return None
            order.append(queue.orders(count))
            partition.append(np.full(count, number, np.int32))
            final.append(queue.finals(count))
        orders = np.concatenate([*order, np.empty(0, np.int64)])
        by = np.argsort(orders, kind="stable")
        numbers = np.concatenate([*partition, np.empty(0, np.int32)])
        return orders[by], numbers[by], np.concatenate([*final, np.empty(0, np.bool_)])[by]

    def pop(self, order: I64, partition: I32) -> Popped:
        """Remove the examples that `orders` has returned; after `first_of`, call `sort_again`, too.

        Args:
            order: int64[k] of the k ≥ 1 examples.
            partition: int32[k] of the same examples.
        """
        k = len(order)
        self._selected = self._selected[0][k:], self._selected[1][k:]
        parts = [
            part
            for number, queue in self._queues.items()
            for part in queue.pop(int(np.count_nonzero(partition == number)))
        ]
        rows = concat_rows([part.rows for part in parts])
        label = np.concatenate([part.label for part in parts])
        late = np.concatenate([part.late for part in parts])
        given = [part.words for part in parts if part.words is not None]
        words = np.concatenate(given) if given else None
        if len(self._queues) > 1:
            # Rows come partition by partition; `place` sorts them into the sequence.
            place = np.empty(k, np.int64)
            place[np.argsort(partition, kind="stable")] = np.arange(k)
            rows, label, late = rows.take(pa.array(place)), label[place], late[place]
            words = None if words is None else words[place]
        return Popped(rows, label, order, partition, late, words)
