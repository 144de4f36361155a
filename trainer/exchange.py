"""From a rank's own examples with all fields to all examples with the rank's own fields.

Each rank extracts features of its own Kafka partitions; DES wants every sample of a field on the field's
rank. One small all-gather tells sizes, then one all-to-all carries, from each rank to each other, the keys of
the other's fields, the number of keys per row for fields that need it (those without exactly one key in every
row), the labels, and the dense features to the rank that holds their block.

What examples of a user have in common (ingest.common) travels once a group, with the group of each row. Each
rank groups its rows or not; where one does, every row of another that does not is a group of its own.

The global batch is rank-major: rank 0's rows, then rank 1's, and so on; groups likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingest.common import Common, CommonFeatures
from ingest.features import Features
from trainer.collectives import Collectives, Words
from trainer.placement import Placement

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]

UNGROUPED = -1


@dataclass(frozen=True)
class GlobalBatch:
    """All B rows of a step, with the features that live on this rank.

    Attributes:
        rows: rows of each rank; B is their sum
        offsets: i32[cells + 1], field-major over own fields: a common field has G cells, another B
        keys: i64[nnz], field-major
        dense: f32[B, Dd - Dc] where the dense features live, else None; without the common ones
        common: f32[G, Dc], the common dense features, where they live
        label: f32[B]
        index: i32[B], the group of each row. None where no rows are grouped, or nothing of a group lives
            here: then every field has B cells, and `dense` is f32[B, Dd]
        groups: G
    """

    rows: tuple[int, ...]
    offsets: I32
    keys: NDArray[np.int64]
    dense: F32 | None
    label: F32
    index: I32 | None = None
    groups: int = 0
    common: F32 | None = None

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class _Share:
    """What one rank gives: its rows and groups (or UNGROUPED), keys per field, and which fields need their
    numbers of keys per row."""

    rows: int
    groups: int
    counts: NDArray[np.int64]
    ragged: NDArray[np.bool_]

    def header(self) -> Words:
        """rows, groups, then per field its number of keys n, or ~n where every row has exactly one."""
        sizes = np.where(self.ragged, self.counts, ~self.counts)
        header: Words = np.r_[self.rows, self.groups, sizes].astype(np.int64)
        return header

    @staticmethod
    def read(header: Words) -> _Share:
        sizes = header[2:]
        return _Share(int(header[0]), int(header[1]), np.where(sizes < 0, ~sizes, sizes), sizes >= 0)

    @property
    def grouped(self) -> bool:
        return self.groups != UNGROUPED

    @property
    def cells(self) -> int:
        """Cells of a common field."""
        return self.groups if self.grouped else self.rows


@dataclass(frozen=True)
class _Columns:
    """Features by field: number of keys of each cell, i32[cells], and keys."""

    lengths: list[I32]
    keys: list[NDArray[np.int64]]

    @staticmethod
    def of(features: Features | CommonFeatures, common: Common, fields: int) -> _Columns:
        """All F fields."""
        lengths: list[I32] = [np.empty(0, np.int32)] * fields
        keys = [np.empty(0, np.int64)] * fields
        if isinstance(features, Features):
            sides = [(features, tuple(range(fields)))]
        else:
            own = tuple(f for f in range(fields) if f not in common.fields)
            sides = [(features.common, common.fields), (features.own, own)]
        for side, numbers in sides:
            if not side.rows:
                continue
            for f, row in zip(numbers, side.lengths, strict=True):
                lengths[f] = row
            bounds = side.offsets[:: side.rows]
            for i, f in enumerate(numbers):
                keys[f] = side.keys[bounds[i] : bounds[i + 1]]
        return _Columns(lengths, keys)


class Exchange:
    """The key all-to-all of one rank; every rank calls it in the same step."""

    def __init__(
        self,
        placement: Placement,
        dense_width: int,
        collectives: Collectives,
        common: Common = Common(),  # noqa: B008, frozen
    ) -> None:
        self.placement = placement
        self.dense_width = dense_width
        self.collectives = collectives
        self.common = common
        self.own = placement.fields_of(collectives.rank)
        self.holds_dense = dense_width > 0 and placement.dense_owner == collectives.rank
        self._own_dense = [d for d in range(dense_width) if d not in common.dense]

    def __call__(self, features: Features | CommonFeatures, label: F32) -> GlobalBatch:
        """Own examples (all F fields, label f32[b]; b may be 0) → the global batch with own fields."""
        if self.collectives.world == 1:
            return self._alone(features, label)
        columns = _Columns.of(features, self.common, len(self.placement.owner))
        mine = self._share(features, columns)
        headers = self.collectives.all_gather(mine.header(), "sizes")
        shares = [_Share.read(header) for header in headers]
        rank = self.collectives.rank
        outgoing = [self._pack(r, mine, features, columns, label) for r in range(len(shares))]
        incoming = [self._words(rank, share) for share in shares]
        sent = {"keys": 0, "labels": 0, "dense": 0}
        for r, words in enumerate(outgoing):
            if r != rank:
                dense_bytes = 4 * self._dense_to(r, mine)
                sent["labels"] += label.nbytes
                sent["dense"] += dense_bytes
                sent["keys"] += words.nbytes - label.nbytes - dense_bytes
        return self._merge(shares, self.collectives.all_to_all(outgoing, incoming, sent))

    def _alone(self, features: Features | CommonFeatures, label: F32) -> GlobalBatch:
        """The batch of a single rank."""
        if isinstance(features, Features):
            dense = features.dense if self.holds_dense else None
            return GlobalBatch((features.rows,), features.offsets, features.keys, dense, label)
        columns = _Columns.of(features, self.common, len(self.placement.owner))
        return GlobalBatch(
            (features.rows,),
            _offsets(columns.lengths),
            np.concatenate(columns.keys),
            features.own.dense if self.holds_dense else None,
            label,
            features.index,
            features.groups,
            features.common.dense if self.holds_dense else None,
        )

    def _share(self, features: Features | CommonFeatures, columns: _Columns) -> _Share:
        """This rank's share."""
        return _Share(
            features.rows,
            features.groups if isinstance(features, CommonFeatures) else UNGROUPED,
            np.array([len(keys) for keys in columns.keys], np.int64),
            np.array([(lengths != 1).any() for lengths in columns.lengths], bool),
        )

    def _needs_index(self, rank: int) -> bool:
        """Whether something of a group lives on a rank."""
        dense = bool(self.common.dense) and self.placement.dense_owner == rank
        return dense or any(self.placement.owner[f] == rank for f in self.common.fields)

    def _dense_to(self, rank: int, share: _Share) -> int:
        """Dense numbers from `share` to `rank`."""
        if rank != self.placement.dense_owner:
            return 0
        return share.rows * len(self._own_dense) + share.cells * len(self.common.dense)

    def _cells(self, field: int, share: _Share) -> int:
        return share.cells if field in self.common.fields else share.rows

    def _halves(self, rank: int, share: _Share) -> int:
        """32-bit numbers from `share` to `rank`: numbers of keys, groups, labels, dense features."""
        ragged = (f for f in self.placement.fields_of(rank) if share.ragged[f])
        rows = share.rows * (1 + (share.grouped and self._needs_index(rank)))
        return sum(self._cells(f, share) for f in ragged) + rows + self._dense_to(rank, share)

    def _words(self, rank: int, share: _Share) -> int:
        keys = int(share.counts[list(self.placement.fields_of(rank))].sum())
        return keys + (self._halves(rank, share) + 1) // 2

    def _pack(
        self, rank: int, mine: _Share, features: Features | CommonFeatures, columns: _Columns, label: F32
    ) -> Words:
        """Message to `rank`: keys by field, then 32-bit numbers."""
        words = np.zeros(self._words(rank, mine), np.int64)
        if mine.rows == 0:
            return words
        fields = self.placement.fields_of(rank)
        keys = [columns.keys[f] for f in fields]
        total = sum(map(len, keys))
        np.concatenate(keys, out=words[:total])
        halves = words[total:].view(np.int32)
        parts = [columns.lengths[f] for f in fields if mine.ragged[f]]
        if isinstance(features, CommonFeatures):
            parts += [features.index] if self._needs_index(rank) else []
            dense = [features.common.dense, features.own.dense]
        else:
            dense = [features.dense]
        parts.append(label.view(np.int32))
        if self._dense_to(rank, mine):
            parts += [np.ascontiguousarray(block).view(np.int32).ravel() for block in dense]
        np.concatenate(parts, out=halves[: self._halves(rank, mine)])
        return words

    def _merge(self, shares: list[_Share], messages: list[Words]) -> GlobalBatch:
        rank = self.collectives.rank
        rows = tuple(share.rows for share in shares)
        groups = 0
        keys: list[list[Words]] = [[] for _ in self.own]
        lengths: list[list[I32]] = [[] for _ in self.own]
        index: list[I32] = []
        labels: list[F32] = []
        dense: list[F32] = []
        common: list[F32] = []
        grouped = self._needs_index(rank) and any(share.grouped for share in shares)
        for share, words in zip(shares, messages, strict=True):
            at = 0
            for i, f in enumerate(self.own):
                keys[i].append(words[at : at + share.counts[f]])
                at += int(share.counts[f])
            halves = _Reader(words[at:].view(np.int32))
            for i, f in enumerate(self.own):
                cells = self._cells(f, share)
                lengths[i].append(halves.take(cells) if share.ragged[f] else np.ones(cells, np.int32))
            if grouped:
                own = halves.take(share.rows) if share.grouped else np.arange(share.rows, dtype=np.int32)
                index.append(own + np.int32(groups))
                groups += share.cells
            labels.append(halves.take(share.rows).view(np.float32))
            if self.holds_dense:
                for block, into in zip(self._dense(halves, share, grouped), (common, dense), strict=True):
                    into.append(block)
        return GlobalBatch(
            rows,
            _offsets([part for field in lengths for part in field]),
            np.concatenate([part for field in keys for part in field]),
            np.concatenate(dense) if self.holds_dense else None,
            np.concatenate(labels),
            np.concatenate(index) if grouped else None,
            groups,
            np.concatenate(common) if self.holds_dense and grouped else None,
        )

    def _dense(self, halves: _Reader, share: _Share, grouped: bool) -> tuple[F32, F32]:
        """The common and the other dense features of a message; all of them are others if not `grouped`."""
        if share.grouped:
            sizes = (share.groups, len(self.common.dense)), (share.rows, len(self._own_dense))
            common, own = (
                halves.take(rows * width).view(np.float32).reshape(rows, width) for rows, width in sizes
            )
            return common, own
        block = halves.take(share.rows * self.dense_width).view(np.float32)
        block = block.reshape(share.rows, self.dense_width)
        if not grouped:
            return block[:, :0], block
        return block[:, list(self.common.dense)], block[:, self._own_dense]


class _Reader:
    """Takes 32-bit numbers off the front of a message."""

    def __init__(self, halves: I32) -> None:
        self._halves, self._at = halves, 0

    def take(self, count: int) -> I32:
        self._at += count
        return self._halves[self._at - count : self._at]


def _offsets(lengths: list[I32]) -> I32:
    joined = np.concatenate(lengths)
    offsets = np.zeros(len(joined) + 1, np.int32)
    np.cumsum(joined, out=offsets[1:])
    return offsets
