"""Own examples by field, and the unique keys whose rows they request."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from livectr.ingest.common_features import AnyFeatures, CommonFeatures
from livectr.ingest.extract.device_features import DeviceFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.keys.unique import unique_segments
from livectr.trainer.comm.key_codec import Segments
from livectr.trainer.des.batch import F32, I32, I64, RequestedRows
from livectr.trainer.des.route import Route
from livectr.trainer.placement.placement import owners_by_key

_NO_KEYS = np.empty(0, np.int64)


@dataclass(frozen=True)
class OwnFeatures:
    """Features of the own b examples.

    Attributes:
        offsets: i32[cells + 1] of each field
        keys: i64[nnz] of each field
        segments: the same as segments of a message, one a field; empty for a single rank
        dense: f32[b, own] dense features that are not common, where they were computed
        common: f32[groups, common] dense features, where they were computed
        group_of: i32[b], group of each example; None where they are not grouped
    """

    offsets: list[I32]
    keys: list[I64]
    segments: Segments
    dense: F32 | Tensor
    common: F32 | Tensor
    group_of: I32 | None


class FeatureReader:
    """Splits a rank's features by field. `dense_width`: dense features of the pipeline."""

    def __init__(self, route: Route, dense_width: int) -> None:
        self.route = route
        self._fields = len(route.field_exchange)
        self._own_dense = [d for d in range(dense_width) if d not in route.common.dense]
        self._columns = functools.cache(lambda device: self._columns_on(device))
        self._holders = [rank for _, rank in route.row_sources]
        tables = [table for table, _ in route.row_sources]
        self._source_of = [tables.index(route.tables[f]) for f in route.rows]
        self._split = [route.tables[f] in route.placement.split for f in route.rows]

    @property
    def own_dense_width(self) -> int:
        """Dense features that are not common."""
        return len(self._own_dense)

    def read_dense(self, features: AnyFeatures) -> OwnFeatures:
        """Dense features alone, by common and own; for a single rank, which exchanges no keys."""
        if isinstance(features, CommonFeatures):
            own, common, group_of = _dense(features.own), _dense(features.common), features.index
        else:
            (own, common), group_of = self._by_part(_dense(features)), None
        return OwnFeatures([], [], Segments.empty(0), own, common, group_of)

    def _by_part(self, dense: F32 | Tensor) -> tuple[F32 | Tensor, F32 | Tensor]:
        """Own and common columns of dense features f32[b, ·]."""
        common = list(self.route.common.dense)
        if isinstance(dense, Tensor):
            places = self._columns(dense.device)
            return dense.index_select(1, places[0]) if common else dense, dense.index_select(1, places[1])
        own = np.ascontiguousarray(dense[:, self._own_dense]) if common else dense
        return own, np.ascontiguousarray(dense[:, common])

    def _columns_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Numbers of own and common dense features, on a device once: a copy of host memory waits."""
        own, common = self._own_dense, self.route.common.dense
        return torch.tensor(own, dtype=torch.int64, device=device), torch.tensor(
            common, dtype=torch.int64, device=device
        )

    def read(self, features: AnyFeatures) -> OwnFeatures:
        """Own features by field, and as segments of a message."""
        own, parts_of = self.read_fields(features)
        segments = [
            Segments.of(part.offsets, part.keys, part.rows) if part.rows else Segments.empty(len(fields))
            for part, fields in parts_of
        ]
        order = np.argsort([f for _, fields in parts_of for f in fields])
        return replace(own, segments=Segments.concat(segments).take(order))

    def read_fields(
        self, features: AnyFeatures
    ) -> tuple[OwnFeatures, list[tuple[Features, tuple[int, ...]]]]:
        """Own features by field, without segments; the blocks of features, each with its fields."""
        if isinstance(features, CommonFeatures):
            common = self.route.common.fields
            own = tuple(f for f in range(self._fields) if f not in common)
            parts_of = [(features.common.ids(), common), (features.own.ids(), own)]
        else:
            parts_of = [(features.ids(), tuple(range(self._fields)))]
        offsets = [np.zeros(1, np.int32)] * self._fields
        keys = [np.empty(0, np.int64)] * self._fields
        for part, fields in parts_of:
            if not part.rows:
                continue
            for i, f in enumerate(fields):
                offsets[f] = part.offsets[i * part.rows : (i + 1) * part.rows + 1]
                keys[f] = part.keys[offsets[f][0] : offsets[f][-1]]
        return replace(self.read_dense(features), offsets=offsets, keys=keys), parts_of

    def by_owner(self, own: OwnFeatures) -> Segments:
        """Keys of `Route.split_vectors`, each for its owner.

        There is a segment of each field for rank 0, then for rank 1, and so on. A segment has all cells, of
        which those without a key of the rank are empty.
        """
        fields, world = self.route.split_vectors, self.route.world
        if not fields:
            return Segments.empty(0)
        lengths = [np.diff(own.offsets[f]) for f in fields]
        cells = np.array([len(part) for part in lengths], np.int64)
        count = int(cells.sum())
        keys = np.concatenate([own.keys[f] for f in fields])
        owner = owners_by_key(keys, world)
        cell = owner * count + np.repeat(np.arange(count), np.concatenate(lengths))
        offsets = np.zeros(world * count + 1, np.int32)
        np.cumsum(np.bincount(cell, minlength=world * count), out=offsets[1:])
        order = np.argsort(owner.astype(np.min_scalar_type(world)), kind="stable")
        return Segments.ragged(offsets, keys[order], np.tile(cells, world))

    def request(self, own: OwnFeatures) -> tuple[RequestedRows, list[I64]]:
        """Rows that own examples need, and the unique keys of each of `Route.row_sources`."""
        fields, world = self.route.rows, self.route.world
        if not fields:
            return RequestedRows([], _NO_KEYS, (0,) * world), []
        keys = np.concatenate([own.keys[f] for f in fields])
        order, sizes = self._by_source([own.keys[f] for f in fields])
        unique = unique_segments(keys if order is None else keys[order], np.r_[0, np.cumsum(sizes)])
        requests = [unique.keys[a:b] for a, b in itertools.pairwise(unique.bounds)]
        # Rows come rank by rank, and from each rank in the order of its tables.
        by_rank = np.argsort(self._holders, kind="stable")
        counts = np.diff(unique.bounds)
        first = np.empty_like(counts)
        first[by_rank] = np.cumsum(counts[by_rank]) - counts[by_rank]
        places = (unique.index + np.repeat(first, sizes)).astype(np.int64)
        index = places
        if order is not None:
            index = np.empty_like(places)
            index[order] = places
        received = np.bincount(self._holders, counts, minlength=world).astype(int)
        lengths = [np.diff(own.offsets[f]) for f in fields]
        return RequestedRows(lengths, index, tuple(received.tolist())), requests

    def _by_source(self, keys: list[I64]) -> tuple[I64 | None, I64]:
        """Order that sorts the keys of `Route.rows` by `Route.row_sources`, and keys of each source.

        The order is None where the keys are sorted already; the keys of each source are counted.
        """
        count = len(self._holders)
        if not any(self._split):
            sizes = np.zeros(count, np.int64)
            np.add.at(sizes, self._source_of, [len(part) for part in keys])
            return None, sizes
        parts = [
            source + owners_by_key(part, self.route.world) if split else np.full(len(part), source)
            for source, split, part in zip(self._source_of, self._split, keys, strict=True)
        ]
        sources = np.concatenate(parts).astype(np.min_scalar_type(count))
        return np.argsort(sources, kind="stable"), np.bincount(sources, minlength=count)


def _dense(features: Features | DeviceFeatures) -> F32 | Tensor:
    """Dense features f32[b, ·], a view of the device's memory where they are there."""
    if isinstance(features, Features):
        return features.dense
    viewed: Tensor = from_dlpack(features.dense)
    return viewed
