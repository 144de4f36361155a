"""From a rank's own examples with all fields to what this rank's tables are asked for in a step.

Each rank extracts features of its own Kafka partitions. One small all-gather tells sizes, then one all-to-all
carries, from each rank to each other (see `trainer.des.route`):

    the keys of the other's fields, of all own examples, deduplicated (`trainer.comm.key_codec`);
    the unique keys of the other's tables, of own examples' fields that travel as rows; of a table that is
    split by key, those that are the other's;
    where every rank finishes every example: labels, and the dense features to the rank that holds them.

What examples of a user have in common (ingest.common_features) travels once a group, with the group of each
row. Each
rank groups its rows or not; where one does, every row of another that does not is a group of its own.

The global batch is rank-major: rank 0's rows, then rank 1's, and so on; groups likewise.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from livectr.ingest.common_features import CommonFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import unique_segments
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.key_codec import U8, Segments, decode, encode, measure
from livectr.trainer.des.route import Route
from livectr.trainer.placement.placement import owners_by_key

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]

UNGROUPED = -1
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class SampleParallelKeys:
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
        index: i32[B], the group of each row; None where no rows are grouped, or no group is added to its rows
        own_index: i32[b], the own rows' group among the own ones; None where they are not grouped
        asked: for each own table of `Route.asks`: the keys that each rank wants
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
    near: SampleParallelKeys
    label: F32
    dense: F32 | None
    common: F32 | None

    def __len__(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True)
class _Share:
    """What one rank gives: its rows, its groups (or UNGROUPED), and a header (trainer.comm.key_codec) for
    each
    segment of its messages: for each rank in turn, the rank's far fields, what is asked of it, and the group
    of each row where the rank needs it."""

    rows: int
    groups: int
    segments: I64

    def header(self) -> I64:
        header: I64 = np.r_[self.rows, self.groups, self.segments].astype(np.int64)
        return header

    @staticmethod
    def read(header: I64) -> _Share:
        return _Share(int(header[0]), int(header[1]), header[2:])

    @property
    def grouped(self) -> bool:
        return self.groups != UNGROUPED

    @property
    def cells(self) -> int:
        """Cells of a common field."""
        return self.groups if self.grouped else self.rows


@dataclass(frozen=True)
class _Mine:
    """Own features: keys by field, dense numbers without the common ones and the common ones, groups."""

    offsets: list[I32]
    keys: list[I64]
    segments: Segments
    dense: F32
    common: F32
    index: I32 | None


class Exchange:
    """The key all-to-all of one rank; every rank calls it in the same step."""

    def __init__(self, route: Route, dense_width: int, collectives: Collectives) -> None:
        self.route = route
        self.collectives = collectives
        self.rank = collectives.rank
        self.dense_width = dense_width
        self._fields = len(route.field_exchange)
        self._is_common = np.isin(np.arange(self._fields), route.common.fields)
        self._own_dense = [d for d in range(dense_width) if d not in route.common.dense]
        self._owners = [rank for _, rank in route.asks]
        tables = [table for table, _ in route.asks]
        self._asks = [tables.index(route.tables[f]) for f in route.rows]
        self._split = [route.tables[f] in route.placement.split for f in route.rows]
        self._far = [route.far(r) for r in range(route.world)]
        asks = np.arange(len(self._owners))
        self._asked = [asks[np.array(self._owners, int) == r] for r in range(route.world)]
        last = self._fields + len(self._owners)
        parts = [
            np.r_[far, self._fields + asked, [last] * self._needs_index(r)].astype(np.int64)
            for r, (far, asked) in enumerate(zip(self._far, self._asked, strict=True))
        ]
        self._bounds = np.cumsum([0, *map(len, parts)])
        self._order = np.concatenate(parts)

    def __call__(self, features: Features | CommonFeatures, label: F32) -> GlobalBatch:
        """Own examples (all F fields, label f32[b]; b may be 0) → what this rank has to do for all."""
        groups = features.groups if isinstance(features, CommonFeatures) else UNGROUPED
        if self.collectives.world == 1 and isinstance(features, Features):
            return self._alone(
                self._numbers_of(features), _Share(features.rows, groups, _NONE), features, label
            )
        mine = self.read(features)
        if self.collectives.world == 1:
            return self._alone(mine, _Share(features.rows, groups, _NONE), None, label)
        near, wanted = self._unique(mine)
        own = np.zeros(len(self._order), bool)
        own[self._bounds[self.rank] : self._bounds[self.rank + 1]] = True
        index = mine.index.astype(np.int64) if mine.index is not None else np.empty(0, np.int64)
        segments = Segments.concat([mine.segments, _lists([*wanted, index])]).take(self._order).plain(own)
        encoded = encode(segments)
        share = _Share(features.rows, groups, encoded.header)
        shares = [_Share.read(header) for header in self.collectives.all_gather(share.header(), "sizes")]
        outgoing, sent = [], {"keys": 0, "labels": 0, "dense": 0}
        for r in range(len(shares)):
            parts = self._numbers_to(r, mine, share, label)
            first, last = encoded.bounds[self._bounds[r]], encoded.bounds[self._bounds[r + 1]]
            outgoing.append(
                np.concatenate([*(part.view(np.uint8) for part in parts), encoded.payload[first:last]])
            )
            if r != self.rank:
                labels, dense = 4 * self._labels(share), 4 * self._dense_to(r, share)
                sent["labels"] += labels
                sent["dense"] += dense
                sent["keys"] += outgoing[r].nbytes - labels - dense
        halves = [self._halves(self.rank, one) for one in shares]
        measured = [self._measure(one) for one in shares]
        incoming = [4 * n + int(sizes.sum()) for n, (_, _, sizes) in zip(halves, measured, strict=True)]
        messages = self.collectives.all_to_all_bytes(outgoing, incoming, sent)
        return self._merge(shares, messages, measured, mine, near, label)

    # ── the own share ──

    def _numbers_of(self, features: Features) -> _Mine:
        """Dense features by whether they are common; nothing else is looked at."""
        dense, common = features.dense, list(self.route.common.dense)
        own = np.ascontiguousarray(dense[:, self._own_dense]) if common else dense
        return _Mine([], [], Segments.empty(0), own, np.ascontiguousarray(dense[:, common]), None)

    def read(self, features: Features | CommonFeatures) -> _Mine:
        """Own features by field."""
        if isinstance(features, Features):
            split = self._numbers_of(features)
            sides = [(features, tuple(range(self._fields)))]
            numbers, index = (split.common, split.dense), None
        else:
            common = self.route.common.fields
            own = tuple(f for f in range(self._fields) if f not in common)
            sides = [(features.common, common), (features.own, own)]
            numbers, index = (features.common.dense, features.own.dense), features.index
        offsets = [np.zeros(1, np.int32)] * self._fields
        keys = [np.empty(0, np.int64)] * self._fields
        parts: list[Segments] = []
        order: list[int] = []
        for side, fields in sides:
            order += fields
            if not side.rows:
                parts.append(Segments.empty(len(fields)))
                continue
            parts.append(Segments.of(side.offsets, side.keys, side.rows))
            for i, f in enumerate(fields):
                offsets[f] = side.offsets[i * side.rows : (i + 1) * side.rows + 1]
                keys[f] = side.keys[offsets[f][0] : offsets[f][-1]]
        segments = Segments.concat(parts).take(np.argsort(order))
        return _Mine(offsets, keys, segments, numbers[1], numbers[0], index)

    def _unique(self, mine: _Mine) -> tuple[SampleParallelKeys, list[I64]]:
        """What the rows of own examples need, and the unique keys of each of `Route.asks`."""
        fields = self.route.rows
        if not fields:
            return SampleParallelKeys([], np.empty(0, np.int64), (0,) * self.collectives.world), []
        keys = np.concatenate([mine.keys[f] for f in fields])
        order, sizes = self._by_ask([mine.keys[f] for f in fields])
        asked = keys if order is None else keys[order]
        unique = unique_segments(asked, np.r_[0, np.cumsum(sizes)])
        wanted = [unique.keys[a:b] for a, b in itertools.pairwise(unique.bounds)]
        # Rows come rank by rank, and from each in the order of its tables.
        by_rank = np.argsort(self._owners, kind="stable")
        counts = np.diff(unique.bounds)
        first = np.empty_like(counts)
        first[by_rank] = np.cumsum(counts[by_rank]) - counts[by_rank]
        places = (unique.index + np.repeat(first, sizes)).astype(np.int64)
        index = places
        if order is not None:
            index = np.empty_like(places)
            index[order] = places
        coming = np.bincount(self._owners, counts, minlength=self.collectives.world).astype(int)
        lengths = [np.diff(mine.offsets[f]) for f in fields]
        return SampleParallelKeys(lengths, index, tuple(coming.tolist())), wanted

    def _by_ask(self, keys: list[I64]) -> tuple[I64 | None, I64]:
        """How the keys of `Route.rows` are put in the order of `Route.asks` (None: they are), and how many
        each of these has."""
        count = len(self._owners)
        if not any(self._split):
            sizes = np.zeros(count, np.int64)
            np.add.at(sizes, self._asks, [len(one) for one in keys])
            return None, sizes
        asks = [
            ask + owners_by_key(one, self.route.world) if split else np.full(len(one), ask)
            for ask, split, one in zip(self._asks, self._split, keys, strict=True)
        ]
        ask = np.concatenate(asks).astype(np.min_scalar_type(count))
        return np.argsort(ask, kind="stable"), np.bincount(ask, minlength=count)

    def _alone(self, mine: _Mine, share: _Share, whole: Features | None, label: F32) -> GlobalBatch:
        """The batch of a single rank."""
        lengths = [np.diff(offsets) for offsets in mine.offsets]
        return GlobalBatch(
            (share.rows,),
            (share.cells,),
            whole.offsets if whole is not None else _offsets(lengths),
            whole.keys if whole is not None else np.concatenate([*mine.keys, np.empty(0, np.int64)]),
            mine.index,
            mine.index,
            [],
            SampleParallelKeys([], np.empty(0, np.int64), (0,)),
            label,
            mine.dense if self.dense_width else None,
            mine.common if self.route.common.dense else None,
        )

    # ── messages ──

    def _labels(self, share: _Share) -> int:
        return 0 if self.route.scatter else share.rows

    def _needs_index(self, rank: int) -> bool:
        """Whether partial results of groups are added to those of their rows on a rank."""
        dense = bool(self.route.common.dense) and self._has_dense(rank)
        return dense or bool(self._is_common[list(self.route.summed(rank))].any())

    def _has_dense(self, rank: int) -> bool:
        """Whether a rank gets the dense features of all examples."""
        return not self.route.scatter and (self.route.dense or self.route.placement.dense_owner == rank)

    def _dense_to(self, rank: int, share: _Share) -> int:
        """Dense numbers from `share` to `rank`."""
        if not self._has_dense(rank):
            return 0
        return share.rows * len(self._own_dense) + share.cells * len(self.route.common.dense)

    def _halves(self, rank: int, share: _Share) -> int:
        """32-bit numbers from `share` to `rank`: labels, dense features."""
        return self._labels(share) + self._dense_to(rank, share)

    def _numbers_to(self, rank: int, mine: _Mine, share: _Share, label: F32) -> list[NDArray[Any]]:
        """What `_halves` counts."""
        parts: list[NDArray[Any]] = []
        if not self.route.scatter:
            parts.append(label)
        if self._dense_to(rank, share):
            parts += [np.ascontiguousarray(block).ravel() for block in (mine.common, mine.dense)]
        return parts

    def _measure(self, share: _Share) -> tuple[I64, I64, I64]:
        """Headers, cells and bytes of the segments from `share` to this rank."""
        header = share.segments[self._bounds[self.rank] : self._bounds[self.rank + 1]]
        far = np.array(self._far[self.rank], np.int64)
        cells = np.where(self._is_common[far], share.cells, share.rows)
        lists = len(self._asked[self.rank]) + self._needs_index(self.rank)
        cells = np.r_[cells, np.ones(lists, np.int64)].astype(np.int64)
        return header, cells, measure(header, cells)[1]

    def _merge(
        self,
        shares: list[_Share],
        messages: list[U8],
        measured: list[tuple[I64, I64, I64]],
        mine: _Mine,
        near: SampleParallelKeys,
        label: F32,
    ) -> GlobalBatch:
        labels: list[F32] = []
        blocks: tuple[list[F32], list[F32]] = [], []
        for share, message in zip(shares, messages, strict=True):
            halves = _Reader(message[: 4 * self._halves(self.rank, share)].view(np.int32))
            labels.append(halves.take(self._labels(share)).view(np.float32))
            if self._has_dense(self.rank):
                shapes = (share.cells, len(self.route.common.dense)), (share.rows, len(self._own_dense))
                for into, (count, width) in zip(blocks, shapes, strict=True):
                    into.append(halves.take(count * width).view(np.float32).reshape(count, width))
        common, dense = blocks
        if self.route.scatter:
            labels, common, dense = [label], [mine.common], [mine.dense]
        offsets, keys, lists = self._keys(shares, messages, measured)
        index = self._index(shares, lists.pop()) if self._needs_index(self.rank) else None
        return GlobalBatch(
            tuple(share.rows for share in shares),
            tuple(share.cells for share in shares),
            offsets,
            keys,
            index,
            mine.index,
            lists,
            near,
            np.concatenate(labels),
            np.concatenate(dense) if dense and self.dense_width else None,
            np.concatenate(common) if common and self.route.common.dense else None,
        )

    def _keys(
        self, shares: list[_Share], messages: list[U8], measured: list[tuple[I64, I64, I64]]
    ) -> tuple[I32, I64, list[list[I64]]]:
        """Offsets and keys of own far fields, field-major, and each further list of every rank: what it asks
        of each own table, and its groups."""
        header, cells, sizes = (np.stack(parts, axis=1) for parts in zip(*measured, strict=True))
        first = np.array([4 * self._halves(self.rank, share) for share in shares])
        start = first + np.cumsum(sizes, axis=0) - sizes
        message = np.broadcast_to(np.arange(len(shares)), header.shape)
        far = len(self._far[self.rank])

        def decoded(at: slice) -> tuple[I32, I64]:
            flat = [array[at].reshape(-1) for array in (header, cells, message, start)]
            return decode(flat[0], flat[1], messages, flat[2], flat[3])

        offsets, keys = decoded(slice(0, far))
        ends, more = decoded(slice(far, None))
        lists = [more[a:b] for a, b in itertools.pairwise(ends)]
        world = len(shares)
        return offsets, keys, [lists[i : i + world] for i in range(0, len(lists), world)]

    def _index(self, shares: list[_Share], told: list[I64]) -> I32 | None:
        """Group of each row i32[B]; None where no rank has grouped."""
        if not any(share.grouped for share in shares):
            return None
        first = np.cumsum([0, *(share.cells for share in shares)])
        parts = [
            base + (own if share.grouped else np.arange(share.rows))
            for base, share, own in zip(first, shares, told, strict=False)
        ]
        return np.concatenate(parts).astype(np.int32)


class _Reader:
    """Takes 32-bit numbers off the front of a message."""

    def __init__(self, halves: I32) -> None:
        self._halves, self._at = halves, 0

    def take(self, count: int) -> I32:
        self._at += count
        return self._halves[self._at - count : self._at]


def _lists(lists: list[I64]) -> Segments:
    """Each list as a segment of one cell."""
    ends = np.cumsum([0, *map(len, lists)])
    return Segments.lists(np.concatenate([*lists, np.empty(0, np.int64)]), ends)


def _offsets(lengths: list[I32]) -> I32:
    joined = np.concatenate([*lengths, np.empty(0, np.int32)])
    offsets = np.zeros(len(joined) + 1, np.int32)
    np.cumsum(joined, out=offsets[1:])
    return offsets
