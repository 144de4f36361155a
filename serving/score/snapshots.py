"""Snapshots of a version for compiled calls, one for each order of a batch's fields."""

from __future__ import annotations

from typing import Generic, TypeVar

from livectr.kernels.network.pooling import Pooling
from livectr.kernels.request.pooled import ListRead, PooledReads
from livectr.serving.score.plan_stages import MOST_ORDERS, FieldOrder
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache

T = TypeVar("T")


class Snapshots(Generic[T]):
    """Scorer of a version that has a snapshot for each order of the fields.

    It is a base class: an object apart would know the scorer that owns it, and the memory of a version that
    is replaced would wait for the collector of cycles.
    """

    def __init__(self) -> None:
        self._made: tuple[NearCache | None, dict[FieldOrder, T]] = None, {}

    def make_snapshot(self, version: ModelVersion, cache: NearCache, order: FieldOrder) -> T:
        """Make a snapshot; arguments as of `snapshot`."""
        raise NotImplementedError

    def snapshot(self, version: ModelVersion, cache: NearCache, order: FieldOrder) -> T:
        """Snapshot of the version.

        Args:
            version: of this scorer.
            cache: its rows.
            order: of the batches' fields.
        """
        before, snapshots = self._made
        if before is not cache:  # it was emptied: nothing keeps the rows of the one before
            snapshots = {}
            self._made = cache, snapshots
        snapshot = snapshots.get(order)
        if snapshot is None:
            if len(snapshots) >= MOST_ORDERS:  # clients choose which fields are shared
                snapshots.clear()
            snapshot = snapshots[order] = self.make_snapshot(version, cache, order)
        return snapshot


def pooled_reads(pooling: Pooling, version: ModelVersion, order: FieldOrder) -> PooledReads:
    """Lists of batches with fields in an order, at a version."""
    matrices = {
        field: content.published.matrix for content in version.content.values() for field in content.fields
    }
    lists = [
        ListRead(order.places[each.field], matrices[each.field] if each.content else None)
        for each in pooling.lists
    ]
    return PooledReads(pooling, lists, [order.places[name] for name in pooling.queries])
