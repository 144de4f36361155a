"""Reader of a partition's materialized features.

It searches a window of row groups by instance id (hash index); a thread reads and decodes ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from livectr.ingest.join.prefetch import Prefetch
from livectr.ingest.materialized.store import AGAIN, META, Feature, PartFile
from livectr.ingest.sources.part_file import chunk_bytes
from livectr.kernels.keys.keys import MISSING, KeyNumbers
from livectr.system.errors import ConfigError, UserError, reason_of

AHEAD_GROUPS = 1
"""Row groups of a partition that are decoded ahead."""
WINDOW_GROUPS = 2
"""Row groups of a partition that are searched for an instance: a bound on differences in order."""
BEYOND_GROUPS = 2
"""Row groups after an instance's place that are searched before it counts as missing."""

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Group:
    """Decoded row group of n rows.

    Args:
        instance: int64[n].
        time_ms: int64[n].
        failed: bool[n].
        first_order: order of the first row.
        numbers: instance → number; with `row` a hash index of the group.
        row: int64, row of each number.
        keys: int64[S, n], the scalar fields.
        lists: the other sparse fields as (offsets int32[n + 1], keys).
        dense: float32[n, D].
    """

    instance: I64
    time_ms: I64
    failed: npt.NDArray[np.bool_]
    first_order: int
    numbers: KeyNumbers
    row: I64
    keys: I64
    lists: tuple[tuple[npt.NDArray[np.int32], I64], ...]
    dense: F32

    def find(self, instance: I64) -> I64:
        """Rows of instances, int64[m]; -1 for an absent instance."""
        numbers = self.numbers.find(instance)
        known = numbers != MISSING
        rows = np.full(len(instance), -1, np.int64)
        rows[known] = self.row[numbers[known]]
        return rows


@dataclass(frozen=True)
class Hit:
    """Rows of a group and their places in a batch."""

    group: Group
    rows: I64
    places: I64


class PartitionReader:
    """Reads the row groups of a partition in order.

    Args:
        root: folder of the materialized features.
        number: of the partition.
        files: of the partition, in order.
        features: to read.
        fetched: called with the bytes of each read.
        unreadable: dead letters of the materialization, for error messages.
    """

    def __init__(
        self,
        root: Path,
        number: int,
        files: Sequence[PartFile],
        features: Sequence[Feature],
        fetched: Callable[[int], None],
        unreadable: int,
    ) -> None:
        self._root, self._number, self._files = root, number, files
        self._features = features
        self._fetched = fetched
        self._unreadable = unreadable
        self._window: deque[Group] = deque(maxlen=WINDOW_GROUPS)
        self._from_order = 0
        self._prefetch: Prefetch[Group] | None = None

    def find(self, places: I64, instance: I64, order: I64, time_ms: I64) -> list[Hit]:
        """Find the rows of instances.

        Args:
            places: int64[m], places of the examples in their batch.
            instance: int64[m].
            order: int64[m].
            time_ms: int64[m], compared with the stored times.

        Raises:
            UserError: an instance is missing, or has another event time.
        """
        hits: list[Hit] = []
        left = np.arange(len(instance))
        for group in list(self._window):
            left = self._match(group, left, places, instance, time_ms, hits)
        while len(left):
            wanted = int(order[left].min())
            beyond = sum(group.first_order > wanted for group in self._window)
            next_group = self._next(wanted) if beyond < BEYOND_GROUPS else None
            if next_group is None:
                raise self._missing(int(instance[left[order[left].argmin()]]))
            self._window.append(next_group)
            left = self._match(next_group, left, places, instance, time_ms, hits)
        return hits

    def close(self) -> None:
        """Stop the thread."""
        if self._prefetch is not None:
            self._prefetch.close()

    def _match(
        self, group: Group, left: I64, places: I64, instance: I64, time_ms: I64, hits: list[Hit]
    ) -> I64:
        """Add the rows that the group has to `hits`; return the instances left to find."""
        rows = group.find(instance[left])
        here = rows >= 0
        if not here.any():
            return left
        known = left[here]
        if not np.array_equal(group.time_ms[rows[here]], time_ms[known]):
            other = known[group.time_ms[rows[here]] != time_ms[known]][0]
            raise UserError(
                f"instance {instance[other]} of partition {self._number} has another event time in "
                f"{self._root} than in the logs: they have changed; run `{AGAIN}` again"
            )
        hits.append(Hit(group, rows[here], places[known]))
        return left[~here]

    def _next(self, order: int) -> Group | None:
        """The next row group. Groups that end before `order` are skipped, except the last of them."""
        self._from_order = order
        if self._prefetch is None:
            self._prefetch = Prefetch(
                self._groups(), AHEAD_GROUPS, name=f"livectr-materialized-{self._number}"
            )
        return self._prefetch.next()

    def _missing(self, instance: int) -> UserError:
        unreadable = f" ({self._unreadable} records could not be read then)" if self._unreadable else ""
        return UserError(
            f"{self._root} has no instance {instance} of partition {self._number}{unreadable}; make it again "
            f"from these logs with `{AGAIN}`"
        )

    def _groups(self) -> Iterator[Group]:
        """Row groups, read in the thread."""
        columns = [*META, *(feature.name for feature in self._features)]
        before: tuple[pq.ParquetFile, int] | None = None
        for file in self._files:
            parquet = pq.ParquetFile(self._root / file.path, pre_buffer=False)
            place = parquet.schema_arrow.names.index("order")
            for number in range(parquet.num_row_groups):
                statistics = parquet.metadata.row_group(number).column(place).statistics
                if statistics.max < self._from_order:
                    before = parquet, number
                    continue
                if before is not None:  # orders may differ slightly, so it may hold wanted rows
                    yield self._read(*before, columns)
                    before = None
                yield self._read(parquet, number, columns)
        if before is not None:
            yield self._read(*before, columns)

    def _read(self, parquet: pq.ParquetFile, number: int, columns: list[str]) -> Group:
        self._fetched(chunk_bytes(parquet.metadata.row_group(number), columns))
        try:
            table = parquet.read_row_group(number, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(
                f"{self._root}: partition {self._number} cannot be read ({reason_of(error)}); "
                f"run `{AGAIN}` again"
            ) from None
        return _decode(table.combine_chunks().to_batches()[0], self._features)


def _decode(rows: pa.RecordBatch, features: Sequence[Feature]) -> Group:
    instance = rows.column("instance").to_numpy()
    numbers = KeyNumbers()
    number = numbers.assign(instance)
    row = np.empty(len(numbers), np.int64)
    row[number] = np.arange(len(instance))  # a late positive repeats an instance, with equal features
    keys, lists, dense = [], [], []
    for feature in features:
        column = rows.column(feature.name)
        if feature.kind == "key":
            keys.append(column.to_numpy())
        elif feature.kind == "keys":
            offsets = column.offsets.to_numpy()
            lists.append((offsets - offsets[0], column.flatten().to_numpy()))
        else:
            values = column.flatten() if feature.width > 1 else column
            dense.append(values.to_numpy().reshape(len(instance), feature.width))
    return Group(
        instance=instance,
        time_ms=rows.column("time_ms").to_numpy(),
        failed=rows.column("failed").to_numpy(zero_copy_only=False),
        first_order=int(rows.column("order")[0].as_py()),
        numbers=numbers,
        row=row,
        keys=np.stack(keys) if keys else np.empty((0, len(instance)), np.int64),
        lists=tuple(lists),
        dense=np.concatenate(dense, axis=1) if dense else np.empty((len(instance), 0), np.float32),
    )
