"""Snapshots of a version for compiled calls, one for each order of a batch's fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from livectr.serving.score.plan_stages import MOST_ORDERS, FieldOrder
from livectr.serving.version.loader import ModelVersion
from livectr.serving.version.near_cache import NearCache

T = TypeVar("T")


class Snapshots(Generic[T]):
    """Snapshots of a version, by the order of the fields.

    Args:
        make: makes the snapshot of a version with its rows.
    """

    def __init__(self, make: Callable[[ModelVersion, NearCache, FieldOrder], T]) -> None:
        self._make = make
        self._made: tuple[NearCache | None, dict[FieldOrder, T]] = None, {}

    def of(self, version: ModelVersion, cache: NearCache, order: FieldOrder) -> T:
        """Snapshot of the version.

        Args:
            version: always the same.
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
            snapshot = snapshots[order] = self._make(version, cache, order)
        return snapshot
