"""From a rank's own examples with all fields to what this rank's tables are asked for in a step.

Each rank extracts features of its own Kafka partitions. One small all-gather tells sizes, then one all-to-all
carries, from each rank to each other (see `trainer.route`):

    the keys of the other's fields, of all own examples, and the numbers of keys where a row has not just one;
    the unique keys of the other's tables, of own examples' fields that travel as rows;
    where every rank finishes every example: labels, and the dense features to the rank that holds them.

What examples of a user have in common (ingest.common) travels once a group, with the group of each row. Each
rank groups its rows or not; where one does, every row of another that does not is a group of its own.

The global batch is rank-major: rank 0's rows, then rank 1's, and so on; groups likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingest.common import CommonFeatures
from ingest.features import Features
from kernels.unique import unique_segments
from trainer.collectives import Collectives, Words
from trainer.route import Route

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]

UNGROUPED = -1


@dataclass(frozen=True)
class Near:
    """Own examples' fields that travel as rows; U unique keys are asked for.

    Attributes:
        lengths: i32[cells] of each field of `Route.rows`: keys of each cell
        index: i64[nnz] over these fields: which of the U rows each key reads
        coming: rows that come from each rank; they are numbered in this order
    """

    lengths: list[I32]
    index: I64
    coming: tuple[int, ...]


@dataclass(frozen=True)
class GlobalBatch:
    """A step's B examples, as this rank has to do with them.

    Attributes:
        rows: examples of each rank; B is their sum
        cells: groups of each rank; its rows where it has not grouped
        offsets: i32[cells + 1], field-major over `Route.far`: a common field has G cells, another B
        keys: i64[nnz], field-major
        index: i32[B], the group of each row; None where no rows are grouped, or nothing of a group is here
        own_index: i32[b], the own rows' group among the own ones; None where they are not grouped
        asked: for each own table of `Route.row_tables`: the keys that each rank wants
        near: what this rank asked for
        label: f32[B], or f32[b] of the own examples where a rank finishes only these
        dense, common: f32[·, Dd - Dc] and f32[·, Dc], the dense features of the same examples, and the common
            ones of their groups; None where this rank has none
    """

    rows: tuple[int, ...]
    cells: tuple[int, ...]
    offsets: I32
    keys: I64
    index: I32 | None
    own_index: I32 | None
    asked: list[list[I64]]
    near: Near
    label: F32
    dense: F32 | None
    common: F32 | None

    def __len__(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True)
class _Share:
    """What one rank gives: its rows and groups (or UNGROUPED), keys per field, which fields need their
    numbers of keys per row, and how many unique keys it asks of each row table."""

    rows: int
    groups: int
    counts: I64
    ragged: NDArray[np.bool_]
    asks: I64

    def header(self) -> Words:
        """rows, groups, then per field its number of keys n, or ~n where every row has exactly one; asks."""
        sizes = np.where(self.ragged, self.counts, ~self.counts)
        header: Words = np.r_[self.rows, self.groups, sizes, self.asks].astype(np.int64)
        return header

    @staticmethod
    def read(header: Words, fields: int) -> _Share:
        sizes = header[2 : 2 + fields]
        return _Share(
            int(header[0]),
            int(header[1]),
            np.where(sizes < 0, ~sizes, sizes),
            sizes >= 0,
            header[2 + fields :],
        )

    @property
    def grouped(self) -> bool:
        return self.groups != UNGROUPED

    @property
    def cells(self) -> int:
        """Cells of a common field."""
        return self.groups if self.grouped else self.rows


@dataclass(frozen=True)
class _Columns:
    """Features by field: number of keys of each cell, i32[cells], and keys; and the dense features."""

    lengths: list[I32]
    keys: list[I64]
    dense: F32
    common: F32
    index: I32 | None


class Exchange:
    """The key all-to-all of one rank; every rank calls it in the same step."""

    def __init__(self, route: Route, dense_width: int, collectives: Collectives) -> None:
        self.route = route
        self.collectives = collectives
        self.rank = collectives.rank
        self.far = route.far(self.rank)
        self.dense_width = dense_width
        self._fields = len(route.travel)
        self._common_dense = list(route.common.dense)
        self._own_dense = [d for d in range(dense_width) if d not in route.common.dense]
        self._owners = [route.owner(table) for table in route.row_tables]
        self._numbers = [route.row_tables.index(route.tables[f]) for f in route.rows]

    def __call__(self, features: Features | CommonFeatures, label: F32) -> GlobalBatch:
        """Own examples (all F fields, label f32[b]; b may be 0) → what this rank has to do for all."""
        columns = self._columns(features)
        near, wanted = self._unique(columns)
        mine = _Share(
            features.rows,
            features.groups if isinstance(features, CommonFeatures) else UNGROUPED,
            np.array([len(keys) for keys in columns.keys], np.int64),
            np.array([(lengths != 1).any() for lengths in columns.lengths], bool),
            np.array([len(keys) for keys in wanted], np.int64),
        )
        if self.collectives.world == 1:
            return self._alone(columns, mine, near, label)
        headers = self.collectives.all_gather(mine.header(), "sizes")
        shares = [_Share.read(header, self._fields) for header in headers]
        outgoing = [self._pack(r, mine, columns, wanted, label) for r in range(len(shares))]
        incoming = [self._words(self.rank, share) for share in shares]
        sent = {"keys": 0, "labels": 0, "dense": 0}
        for r, words in enumerate(outgoing):
            if r != self.rank:
                labels, dense = 4 * self._labels(mine), 4 * self._dense_to(r, mine)
                sent["labels"] += labels
                sent["dense"] += dense
                sent["keys"] += words.nbytes - labels - dense
        received = self.collectives.all_to_all(outgoing, incoming, sent)
        return self._merge(shares, received, columns, near, label)

    # ── the own share ──

    def _columns(self, features: Features | CommonFeatures) -> _Columns:
        lengths: list[I32] = [np.empty(0, np.int32)] * self._fields
        keys = [np.empty(0, np.int64)] * self._fields
        common = self.route.common
        if isinstance(features, Features):
            sides = [(features, tuple(range(self._fields)))]
            dense = features.dense
            numbers = dense[:, self._common_dense], dense[:, self._own_dense] if self._common_dense else dense
        else:
            own = tuple(f for f in range(self._fields) if f not in common.fields)
            sides = [(features.common, common.fields), (features.own, own)]
            numbers = features.common.dense, features.own.dense
        for side, fields in sides:
            if not side.rows:
                continue
            for f, row in zip(fields, side.lengths, strict=True):
                lengths[f] = row
            bounds = side.offsets[:: side.rows]
            for i, f in enumerate(fields):
                keys[f] = side.keys[bounds[i] : bounds[i + 1]]
        index = features.index if isinstance(features, CommonFeatures) else None
        return _Columns(lengths, keys, numbers[1], numbers[0], index)

    def _unique(self, columns: _Columns) -> tuple[Near, list[I64]]:
        """What the rows of own examples need, and the unique keys of each row table."""
        fields = self.route.rows
        lengths = [columns.lengths[f] for f in fields]
        if not fields:
            return Near(lengths, np.empty(0, np.int64), (0,) * self.collectives.world), []
        keys = np.concatenate([columns.keys[f] for f in fields])
        sizes = np.bincount(
            self._numbers, [len(columns.keys[f]) for f in fields], minlength=len(self._owners)
        )
        unique = unique_segments(keys, np.r_[0, np.cumsum(sizes)].astype(np.int64))
        wanted = [unique.keys[a:b] for a, b in zip(unique.bounds, unique.bounds[1:], strict=False)]
        # Rows come rank by rank, and from each in the order of its tables.
        order = np.argsort(self._owners, kind="stable")
        counts = np.diff(unique.bounds)
        first = np.empty_like(counts)
        first[order] = np.cumsum(counts[order]) - counts[order]
        index = unique.index + np.repeat(first, sizes.astype(np.int64))
        coming = np.bincount(self._owners, counts, minlength=self.collectives.world).astype(int)
        return Near(lengths, index.astype(np.int64), tuple(coming.tolist())), wanted

    def _alone(self, columns: _Columns, mine: _Share, near: Near, label: F32) -> GlobalBatch:
        """The batch of a single rank."""
        return GlobalBatch(
            (mine.rows,),
            (mine.cells,),
            _offsets(columns.lengths),
            np.concatenate([*columns.keys, np.empty(0, np.int64)]),
            columns.index,
            columns.index,
            [],
            near,
            label,
            columns.dense if self.dense_width else None,
            columns.common if self._common_dense else None,
        )

    # ── messages ──

    def _labels(self, share: _Share) -> int:
        return 0 if self.route.scatter else share.rows

    def _needs_index(self, rank: int) -> bool:
        """Whether something of a group is computed on a rank for all examples."""
        common, route = self.route.common, self.route
        dense = bool(common.dense) and self._has_dense(rank)
        return dense or any(f in common.fields for f in route.far(rank))

    def _has_dense(self, rank: int) -> bool:
        """Whether a rank gets the dense features of all examples."""
        return not self.route.scatter and (self.route.dense or self.route.placement.dense_owner == rank)

    def _dense_to(self, rank: int, share: _Share) -> int:
        """Dense numbers from `share` to `rank`."""
        if not self._has_dense(rank):
            return 0
        return share.rows * len(self._own_dense) + share.cells * len(self._common_dense)

    def _cells(self, field: int, share: _Share) -> int:
        return share.cells if field in self.route.common.fields else share.rows

    def _halves(self, rank: int, share: _Share) -> int:
        """32-bit numbers from `share` to `rank`: numbers of keys, groups, labels, dense features."""
        ragged = (f for f in self.route.far(rank) if share.ragged[f])
        index = share.rows * (share.grouped and self._needs_index(rank))
        return (
            sum(self._cells(f, share) for f in ragged)
            + index
            + self._labels(share)
            + self._dense_to(rank, share)
        )

    def _asks(self, rank: int, share: _Share) -> list[int]:
        """How many unique keys `share` asks of each row table of `rank`."""
        return [int(n) for n, owner in zip(share.asks, self._owners, strict=True) if owner == rank]

    def _words(self, rank: int, share: _Share) -> int:
        keys = int(share.counts[list(self.route.far(rank))].sum()) + sum(self._asks(rank, share))
        return keys + (self._halves(rank, share) + 1) // 2

    def _pack(self, rank: int, mine: _Share, columns: _Columns, wanted: list[I64], label: F32) -> Words:
        """Message to `rank`: keys by field, unique keys by table, then 32-bit numbers."""
        words = np.zeros(self._words(rank, mine), np.int64)
        fields = self.route.far(rank)
        keys = [columns.keys[f] for f in fields]
        keys += [asked for asked, owner in zip(wanted, self._owners, strict=True) if owner == rank]
        total = sum(map(len, keys))
        np.concatenate([*keys, np.empty(0, np.int64)], out=words[:total])
        parts = [columns.lengths[f] for f in fields if mine.ragged[f]]
        if columns.index is not None and self._needs_index(rank):
            parts.append(columns.index)
        if not self.route.scatter:
            parts.append(label.view(np.int32))
        if self._dense_to(rank, mine):
            blocks = (columns.common, columns.dense)
            parts += [np.ascontiguousarray(block).view(np.int32).ravel() for block in blocks]
        halves = words[total:].view(np.int32)[: self._halves(rank, mine)]
        np.concatenate([*parts, np.empty(0, np.int32)], out=halves)
        return words

    def _merge(
        self, shares: list[_Share], messages: list[Words], columns: _Columns, near: Near, label: F32
    ) -> GlobalBatch:
        keys: list[list[I64]] = [[] for _ in self.far]
        lengths: list[list[I32]] = [[] for _ in self.far]
        own_tables = sum(owner == self.rank for owner in self._owners)
        asked: list[list[I64]] = [[] for _ in range(own_tables)]
        index: list[I32] = []
        labels: list[F32] = []
        dense: list[F32] = []
        common: list[F32] = []
        groups = 0
        grouped = any(share.grouped for share in shares)
        for share, words in zip(shares, messages, strict=True):
            at = 0
            for i, f in enumerate(self.far):
                keys[i].append(words[at : at + share.counts[f]])
                at += int(share.counts[f])
            for t, size in enumerate(self._asks(self.rank, share)):
                asked[t].append(words[at : at + size])
                at += size
            halves = _Reader(words[at:].view(np.int32))
            for i, f in enumerate(self.far):
                cells = self._cells(f, share)
                lengths[i].append(halves.take(cells) if share.ragged[f] else np.ones(cells, np.int32))
            if grouped and self._needs_index(self.rank):
                own = halves.take(share.rows) if share.grouped else np.arange(share.rows, dtype=np.int32)
                index.append(own + np.int32(groups))
                groups += share.cells
            labels.append(halves.take(self._labels(share)).view(np.float32))
            if self._has_dense(self.rank):
                for into, count, width in (
                    (common, share.cells, len(self._common_dense)),
                    (dense, share.rows, len(self._own_dense)),
                ):
                    into.append(halves.take(count * width).view(np.float32).reshape(count, width))
        if self.route.scatter:
            labels, dense, common = [label], [columns.dense], [columns.common]
        return GlobalBatch(
            tuple(share.rows for share in shares),
            tuple(share.cells for share in shares),
            _offsets([part for field in lengths for part in field]),
            np.concatenate([*(part for field in keys for part in field), np.empty(0, np.int64)]),
            np.concatenate(index) if index else None,
            columns.index,
            asked,
            near,
            np.concatenate(labels),
            np.concatenate(dense) if dense and self.dense_width else None,
            np.concatenate(common) if common and self._common_dense else None,
        )


class _Reader:
    """Takes 32-bit numbers off the front of a message."""

    def __init__(self, halves: I32) -> None:
        self._halves, self._at = halves, 0

    def take(self, count: int) -> I32:
        self._at += count
        return self._halves[self._at - count : self._at]


def _offsets(lengths: list[I32]) -> I32:
    joined = np.concatenate([*lengths, np.empty(0, np.int32)])
    offsets = np.zeros(len(joined) + 1, np.int32)
    np.cumsum(joined, out=offsets[1:])
    return offsets
