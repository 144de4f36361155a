"""Key all-to-all of a step: from own examples with all F fields to the keys that this rank's tables read.

Every rank extracts features of its own Kafka partitions. An all-gather tells the sizes. Then one all-to-all
carries, from each rank to each other rank (`trainer.des.route`):

    keys       deduplicated keys of the receiver's fields, of all own examples (`trainer.comm.key_codec`); of
               `Route.split_vectors`, the keys that the receiver owns
    requests   unique keys of the receiver's tables, for own fields whose exchange is `rows`; of a table that
               is split by key, the keys that the receiver owns
    labels     where every rank finishes every example; then also dense features, to the rank that holds them

Common features of a user's examples (ingest.common_features) are sent once a group, with the group of each
example. A rank may group its examples or not. Where some rank does, every example of a rank that does not is
a group of its own.

The global batch is rank-major: examples of rank 0, then of rank 1, and so on; groups likewise.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from livectr.ingest.common_features import AnyFeatures, CommonFeatures
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.key_codec import U8, Encoded, Segments, decode, encode, measure
from livectr.trainer.des.batch import F32, I32, I64, GlobalBatch, RequestedRows
from livectr.trainer.des.ids import Ids, resident_ids
from livectr.trainer.des.own_features import FeatureReader, OwnFeatures
from livectr.trainer.des.route import Route

UNGROUPED = -1
_NO_KEYS = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Share:
    """Sizes of one rank's contribution, as all ranks know them.

    Attributes:
        rows: own examples
        groups: own groups, or UNGROUPED
        segments: i64, header of each segment of its messages (`trainer.comm.key_codec`). For each receiver in
            turn: the fields that it reads, its requested keys, and group_of where it needs that
    """

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


class Exchange:
    """Key all-to-all of one rank; every rank calls it in the same step.

    Args:
        route: exchange of every field.
        dense_width: dense features of the pipeline.
        collectives: of this rank.
        resident: the rows of a single rank are on the device, and so its keys stay there.
    """

    def __init__(
        self, route: Route, dense_width: int, collectives: Collectives, *, resident: bool = False
    ) -> None:
        self.route = route
        self.collectives = collectives
        self.rank = collectives.rank
        self.dense_width, self._resident = dense_width, resident
        self._reader = FeatureReader(route, dense_width)
        fields = len(route.field_exchange)
        self._is_common = np.isin(np.arange(fields), route.common.fields)
        holders = np.array([rank for _, rank in route.row_sources], int)
        self._read = [route.read_by_owner(r) for r in range(route.world)]
        self._requests = [np.arange(len(holders))[holders == r] for r in range(route.world)]
        group_of, split = fields + len(holders), len(route.split_vectors)
        parts = [
            np.r_[
                read[: len(read) - split],
                group_of + 1 + np.arange(r * split, (r + 1) * split),
                fields + requests,
                [group_of] * self._needs_groups(r),
            ].astype(np.int64)
            for r, (read, requests) in enumerate(zip(self._read, self._requests, strict=True))
        ]
        self._bounds = np.cumsum([0, *map(len, parts)])
        self._order = np.concatenate(parts)

    def read(self, features: AnyFeatures) -> OwnFeatures:
        """Own features by field."""
        return self._reader.read(features)

    def __call__(self, features: AnyFeatures, label: F32) -> GlobalBatch:
        """Send own examples' keys to their owners and receive the other ranks'. Collective.

        Args:
            features: own b examples with all F fields; b may be 0.
            label: f32[b].
        """
        groups = features.groups if isinstance(features, CommonFeatures) else UNGROUPED
        if self.collectives.world == 1:
            return self._alone(features, _Share(features.rows, groups, _NO_KEYS), label)
        if not self.route.scatter:
            features = features.host()  # dense features are sent, too
        own = self._reader.read(features)
        requested, requests = self._reader.request(own)
        to_self = np.zeros(len(self._order), bool)
        to_self[self._bounds[self.rank] : self._bounds[self.rank + 1]] = True
        group_of = own.group_of.astype(np.int64) if own.group_of is not None else _NO_KEYS
        lists = _lists([*requests, group_of])
        segments = Segments.concat([own.segments, lists, self._reader.by_owner(own)])
        encoded = encode(segments.take(self._order).plain(to_self))
        share = _Share(features.rows, groups, encoded.header)
        shares = [_Share.read(header) for header in self.collectives.all_gather(share.header(), "sizes")]
        outgoing, sent = self._messages(own, share, label, encoded)
        measured = [self._measure(other) for other in shares]
        incoming = [
            4 * self._word_count(self.rank, other) + int(sizes.sum())
            for other, (_, _, sizes) in zip(shares, measured, strict=True)
        ]
        messages = self.collectives.all_to_all_bytes(outgoing, incoming, sent)
        return self._merge(_Received(shares, messages, measured), own, requested, label)

    def _alone(self, features: AnyFeatures, share: _Share, label: F32) -> GlobalBatch:
        """Batch of a single rank. Keys of features that are not grouped are used as they are."""
        own = self._reader.read_dense(features)
        ids = resident_ids(features, self.route.common.fields) if self._resident else None
        if ids is None:
            if isinstance(features, CommonFeatures):
                parts = self._reader.read_fields(features)[0]
                offsets = _offsets([np.diff(part) for part in parts.offsets])
                keys = np.concatenate([*parts.keys, _NO_KEYS])
            else:
                plain = features.ids()
                offsets, keys = plain.offsets, plain.keys
            ids = Ids.on_host(offsets, keys, self._cells_read([share]))
        return GlobalBatch(
            rows=(share.rows,),
            groups=(share.cells,),
            ids=ids,
            group_of=own.group_of,
            own_group_of=own.group_of,
            requested_keys=[],
            requested_rows=RequestedRows([], _NO_KEYS, (0,)),
            label=label,
            dense=own.dense if self.dense_width else None,
            common=own.common if self.route.common.dense else None,
        )

    # ── sizes ──

    def _label_count(self, share: _Share) -> int:
        """Labels that a rank sends to each other: none where each finishes its own examples."""
        return 0 if self.route.scatter else share.rows

    def _needs_groups(self, rank: int) -> bool:
        """Tell whether a rank adds partial results of groups to those of their examples."""
        dense = bool(self.route.common.dense) and self._has_dense(rank)
        return dense or bool(self._is_common[list(self.route.field_parallel(rank))].any())

    def _has_dense(self, rank: int) -> bool:
        """Tell whether a rank gets the dense features of all examples."""
        return not self.route.scatter and (self.route.dense or self.route.placement.dense_owner == rank)

    def _dense_count(self, rank: int, share: _Share) -> int:
        """Dense numbers from `share` to `rank`."""
        if not self._has_dense(rank):
            return 0
        return share.rows * self._reader.own_dense_width + share.cells * len(self.route.common.dense)

    def _word_count(self, rank: int, share: _Share) -> int:
        """32-bit words of labels and dense features from `share` to `rank`."""
        return self._label_count(share) + self._dense_count(rank, share)

    def _measure(self, share: _Share) -> tuple[I64, I64, I64]:
        """Headers, cells and bytes of the segments from `share` to this rank."""
        header = share.segments[self._bounds[self.rank] : self._bounds[self.rank + 1]]
        fields = np.array(self._read[self.rank], np.int64)
        cells = np.where(self._is_common[fields], share.cells, share.rows)
        lists = len(self._requests[self.rank]) + self._needs_groups(self.rank)
        cells = np.r_[cells, np.ones(lists, np.int64)].astype(np.int64)
        return header, cells, measure(header, cells)[1]

    # ── messages ──

    def _messages(
        self, own: OwnFeatures, share: _Share, label: F32, encoded: Encoded
    ) -> tuple[list[U8], dict[str, int]]:
        """Message to each rank, and the bytes to others by collective."""
        outgoing: list[U8] = []
        sent = {"keys": 0, "labels": 0, "dense": 0}
        for r in range(self.route.world):
            words = self._words(r, own, share, label)
            first, last = encoded.bounds[self._bounds[r]], encoded.bounds[self._bounds[r + 1]]
            outgoing.append(
                np.concatenate([*(part.view(np.uint8) for part in words), encoded.payload[first:last]])
            )
            if r != self.rank:
                labels, dense = 4 * self._label_count(share), 4 * self._dense_count(r, share)
                sent["labels"] += labels
                sent["dense"] += dense
                sent["keys"] += outgoing[r].nbytes - labels - dense
        return outgoing, sent

    def _words(self, rank: int, own: OwnFeatures, share: _Share, label: F32) -> list[NDArray[Any]]:
        """Labels and dense features to `rank`, which `_word_count` counts."""
        parts: list[NDArray[Any]] = []
        if not self.route.scatter:
            parts.append(label)
        if self._dense_count(rank, share):
            parts += [np.ascontiguousarray(block).ravel() for block in (own.common, own.dense)]
        return parts

    def _merge(
        self, received: _Received, own: OwnFeatures, requested: RequestedRows, label: F32
    ) -> GlobalBatch:
        """Global batch out of the messages of all ranks."""
        labels: list[F32] = []
        blocks: tuple[list[F32], list[F32]] = [], []
        shares = received.shares
        for share, message in zip(shares, received.messages, strict=True):
            words = _Words(message[: 4 * self._word_count(self.rank, share)].view(np.int32))
            labels.append(words.read(self._label_count(share)).view(np.float32))
            if self._has_dense(self.rank):
                common_shape = share.cells, len(self.route.common.dense)
                own_shape = share.rows, self._reader.own_dense_width
                for into, (count, width) in zip(blocks, (common_shape, own_shape), strict=True):
                    into.append(words.read(count * width).view(np.float32).reshape(count, width))
        common, dense = blocks
        if self.route.scatter:
            labels = [label]
        offsets, keys, lists = self._keys(received)
        group_of = _group_of(shares, lists.pop()) if self._needs_groups(self.rank) else None
        return GlobalBatch(
            rows=tuple(share.rows for share in shares),
            groups=tuple(share.cells for share in shares),
            ids=Ids.on_host(offsets, keys, self._cells_read(shares)),
            group_of=group_of,
            own_group_of=own.group_of,
            requested_keys=lists,
            requested_rows=requested,
            label=np.concatenate(labels),
            dense=(own.dense if self.route.scatter else _joined(dense)) if self.dense_width else None,
            common=(own.common if self.route.scatter else _joined(common))
            if self.route.common.dense
            else None,
        )

    def _cells_read(self, shares: list[_Share]) -> list[int]:
        """Cells of each field that this rank reads."""
        groups, rows = sum(share.cells for share in shares), sum(share.rows for share in shares)
        return [groups if self._is_common[f] else rows for f in self._read[self.rank]]

    def _keys(self, received: _Received) -> tuple[I32, I64, list[list[I64]]]:
        """Decode the offsets and keys of the fields that this rank reads, field-major, and further lists.

        Each further list is by sender: its requested keys of each own table, then its group_of.
        """
        shares, messages = received.shares, received.messages
        header, cells, sizes = (np.stack(parts, axis=1) for parts in zip(*received.measured, strict=True))
        first = np.array([4 * self._word_count(self.rank, share) for share in shares])
        start = first + np.cumsum(sizes, axis=0) - sizes
        message = np.broadcast_to(np.arange(len(shares)), header.shape)
        fields = len(self._read[self.rank])

        def decoded(at: slice) -> tuple[I32, I64]:
            flat = [array[at].reshape(-1) for array in (header, cells, message, start)]
            return decode(flat[0], flat[1], messages, flat[2], flat[3])

        offsets, keys = decoded(slice(0, fields))
        ends, more = decoded(slice(fields, None))
        lists = [more[a:b] for a, b in itertools.pairwise(ends)]
        world = len(shares)
        return offsets, keys, [lists[i : i + world] for i in range(0, len(lists), world)]


@dataclass(frozen=True)
class _Received:
    """Messages of all ranks, with their sizes; measured: headers, cells and bytes of their segments."""

    shares: list[_Share]
    messages: list[U8]
    measured: list[tuple[I64, I64, I64]]


class _Words:
    """Reads 32-bit words off the front of a message."""

    def __init__(self, words: I32) -> None:
        self._words, self._at = words, 0

    def read(self, count: int) -> I32:
        self._at += count
        return self._words[self._at - count : self._at]


def _group_of(shares: list[_Share], groups: list[I64]) -> I32 | None:
    """Group of each example i32[B], out of each rank's own numbers; None where no rank has grouped."""
    if not any(share.grouped for share in shares):
        return None
    first = np.cumsum([0, *(share.cells for share in shares)])
    parts = [
        base + (own if share.grouped else np.arange(share.rows))
        for base, share, own in zip(first, shares, groups, strict=False)
    ]
    return np.concatenate(parts).astype(np.int32)


def _lists(lists: list[I64]) -> Segments:
    """Each list as a segment of one cell."""
    ends = np.cumsum([0, *map(len, lists)])
    return Segments.lists(np.concatenate([*lists, _NO_KEYS]), ends)


def _offsets(lengths: list[I32]) -> I32:
    """Prefix sum of the lengths of all fields, i32[Σ cells + 1]."""
    joined = np.concatenate([*lengths, np.empty(0, np.int32)])
    offsets = np.zeros(len(joined) + 1, np.int32)
    np.cumsum(joined, out=offsets[1:])
    return offsets


def _joined(blocks: list[F32]) -> F32 | None:
    """Blocks of all ranks, one below the other; None without any."""
    return np.concatenate(blocks) if blocks else None
