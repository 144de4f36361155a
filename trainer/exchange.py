"""From a rank's own examples with all fields to all examples with the rank's own fields.

Each rank extracts features of its own Kafka partitions; DES wants every sample of a field on the field's
rank. One small all-gather tells sizes, then one all-to-all carries, from each rank to each other, the keys of
the other's fields, the number of keys per row for fields that need it (those without exactly one key in every
row), the labels, and the dense features to the rank that holds their block.

The global batch is rank-major: rank 0's rows, then rank 1's, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingest.features import Features
from trainer.collectives import Collectives, Words
from trainer.placement import Placement

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class GlobalBatch:
    """All B rows of a step, with the features that live on this rank.

    Attributes:
        rows: rows of each rank; B is their sum
        offsets: i32[F_local * B + 1], field-major over own fields
        keys: i64[nnz], field-major
        dense: f32[B, Dd] where the dense features live, else None
        label: f32[B]
    """

    rows: tuple[int, ...]
    offsets: I32
    keys: NDArray[np.int64]
    dense: F32 | None
    label: F32

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class _Share:
    """What one rank gives: rows, keys per field, and which fields need their numbers of keys per row."""

    rows: int
    counts: NDArray[np.int64]
    ragged: NDArray[np.bool_]

    def header(self) -> Words:
        """rows, then per field its number of keys n, or ~n where every row has exactly one."""
        header: Words = np.r_[self.rows, np.where(self.ragged, self.counts, ~self.counts)].astype(np.int64)
        return header

    @staticmethod
    def read(header: Words) -> _Share:
        sizes = header[1:]
        return _Share(int(header[0]), np.where(sizes < 0, ~sizes, sizes), sizes >= 0)


class Exchange:
    """The key all-to-all of one rank; every rank calls it in the same step."""

    def __init__(self, placement: Placement, dense_width: int, collectives: Collectives) -> None:
        self.placement = placement
        self.dense_width = dense_width
        self.collectives = collectives
        self.own = placement.fields_of(collectives.rank)
        self.holds_dense = dense_width > 0 and placement.dense_owner == collectives.rank

    def __call__(self, features: Features, label: F32) -> GlobalBatch:
        """Own examples (all F fields, label f32[b]; b may be 0) → the global batch with own fields."""
        if self.collectives.world == 1:
            dense = features.dense if self.holds_dense else None
            return GlobalBatch((features.rows,), features.offsets, features.keys, dense, label)
        mine, lengths = self._share(features)
        headers = self.collectives.all_gather(mine.header(), "sizes")
        shares = [_Share.read(header) for header in headers]
        rank = self.collectives.rank
        outgoing = [self._pack(r, mine, features, lengths, label) for r in range(len(shares))]
        incoming = [self._words(rank, share) for share in shares]
        sent = {"keys": 0, "labels": 0, "dense": 0}
        for r, words in enumerate(outgoing):
            if r != rank:
                dense_bytes = label.nbytes * self._dense_to(r)
                sent["labels"] += label.nbytes
                sent["dense"] += dense_bytes
                sent["keys"] += words.nbytes - label.nbytes - dense_bytes
        return self._merge(shares, self.collectives.all_to_all(outgoing, incoming, sent))

    def _dense_to(self, rank: int) -> int:
        return self.dense_width if rank == self.placement.dense_owner else 0

    def _share(self, features: Features) -> tuple[_Share, I32]:
        """This rank's share and its numbers of keys i32[F, b]."""
        fields, rows = len(self.placement.owner), features.rows
        lengths = np.diff(features.offsets).reshape(fields, rows) if rows else np.zeros((fields, 0), np.int32)
        return _Share(rows, lengths.sum(axis=1, dtype=np.int64), (lengths != 1).any(axis=1)), lengths

    def _halves(self, rank: int, share: _Share) -> int:
        """32-bit numbers from `share` to `rank`: numbers of keys, labels, dense features."""
        ragged = int(share.ragged[list(self.placement.fields_of(rank))].sum())
        return share.rows * (ragged + 1 + self._dense_to(rank))

    def _words(self, rank: int, share: _Share) -> int:
        keys = int(share.counts[list(self.placement.fields_of(rank))].sum())
        return keys + (self._halves(rank, share) + 1) // 2

    def _pack(self, rank: int, mine: _Share, features: Features, lengths: I32, label: F32) -> Words:
        """Message to `rank`: keys by field, then 32-bit numbers."""
        words = np.zeros(self._words(rank, mine), np.int64)
        if mine.rows == 0:
            return words
        fields = self.placement.fields_of(rank)
        bounds = features.offsets[:: mine.rows]
        keys = [features.keys[bounds[f] : bounds[f + 1]] for f in fields]
        total = sum(map(len, keys))
        np.concatenate(keys, out=words[:total])
        halves = words[total:].view(np.int32)
        parts = [lengths[f] for f in fields if mine.ragged[f]] + [label.view(np.int32)]
        if self._dense_to(rank):
            parts.append(np.ascontiguousarray(features.dense).view(np.int32).ravel())
        np.concatenate(parts, out=halves[: self._halves(rank, mine)])
        return words

    def _merge(self, shares: list[_Share], messages: list[Words]) -> GlobalBatch:
        rows = tuple(share.rows for share in shares)
        keys: list[list[Words]] = [[] for _ in self.own]
        lengths: list[list[I32]] = [[] for _ in self.own]
        labels: list[F32] = []
        dense: list[F32] = []
        for share, words in zip(shares, messages, strict=True):
            at = 0
            for i, f in enumerate(self.own):
                keys[i].append(words[at : at + share.counts[f]])
                at += int(share.counts[f])
            halves = words[at:].view(np.int32)
            at = 0
            for i, f in enumerate(self.own):
                if share.ragged[f]:
                    lengths[i].append(halves[at : at + share.rows])
                    at += share.rows
                else:
                    lengths[i].append(np.ones(share.rows, np.int32))
            labels.append(halves[at : at + share.rows].view(np.float32))
            at += share.rows
            if self.holds_dense:
                block = halves[at : at + share.rows * self.dense_width].view(np.float32)
                dense.append(block.reshape(share.rows, self.dense_width))
        offsets = np.zeros(len(self.own) * sum(rows) + 1, np.int32)
        np.cumsum(np.concatenate([part for field in lengths for part in field]), out=offsets[1:])
        return GlobalBatch(
            rows,
            offsets,
            np.concatenate([part for field in keys for part in field]),
            np.concatenate(dense) if self.holds_dense else None,
            np.concatenate(labels),
        )
