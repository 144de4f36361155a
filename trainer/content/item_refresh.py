"""Item refresh: which pre-rank vectors of items a version computes again (`content_refresh_s`).

    an item is new, or its row changed    with every version, until its slot's turn
    its slot is due                       once in `content_refresh_s` of event time; slots take turns
    its slot has moved                    beyond `content_tolerance` since it was computed (item_drift)
    the version is complete               all vectors: a process's first; after a loss or a new champion

An item's slot is a hash of its id, the same on any number of ranks. A slot has a blob, which versions share
until the slot is computed again. Items that are newer than their slot's blob are in the blob `NEWER`, which
counts more. The blob `LEFT` lists ids without vectors: items of the slots' blobs that have left. Every
version writes both again. A slot with many items in them is computed again, so that they stay small.

An item in `NEWER` is computed with every version: its id's row learns fast, and its picture may come after
it. Rank 0 knows the items, and tells the other ranks which are computed. It keeps 8 bytes an item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from livectr.ingest.content.refresh_rule import RefreshRule
from livectr.ingest.content.store import shard_of
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.pipeline import Pipeline
from livectr.models.two_tower import TwoTower
from livectr.store.vectors import blob_rows
from livectr.trainer.content import telemetry
from livectr.trainer.content.item_drift import ItemDrift
from livectr.trainer.content.names import LEFT
from livectr.trainer.content.refresh import NEWER, NEWER_SHARE
from livectr.trainer.content.slots import SLOT_IDS
from livectr.trainer.content.turns import Turns, phase

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Sample = tuple[I64, npt.NDArray[np.float32]]
_NONE: I64 = np.empty(0, np.int64)


class ItemRefresh:
    """Item vectors that are in use; of rank 0.

    Args:
        dim: numbers of a vector.
        slot_ids: most items of a slot. A new catalogue has slots of half as many.
    """

    def __init__(self, rule: RefreshRule, dim: int, slot_ids: int = SLOT_IDS) -> None:
        self._rule = rule
        self._most = min(slot_ids, blob_rows(dim))
        self.drift = ItemDrift(rule.tolerance) if rule.tolerance else None
        self._begun = False  # a version of this process is served
        self._plans = 0
        self._turns = Turns(rule.period_ms)
        self._members: list[I64] = []
        """Ids in each slot's blob."""
        self._versions: I64 = _NONE
        """Number of the plan that computed each slot."""
        self._newer = self._left = _NONE

    def plan(
        self,
        table: LookupTable,
        since: int,
        now_ms: int,
        *,
        whole: bool,
        sample: Sample | None = None,
        first_ms: int = 0,
    ) -> ItemPlan:
        """Plan the vectors of a version.

        Args:
            table: of the items.
            since: generation of its rows in the version before.
            now_ms: event time of the version's step.
            whole: nothing of the version before stays.
            sample: ids of `drift.sample` and their present vectors.
            first_ms: event time of this process's first example; 0 before it.
        """
        self._plans += 1
        moved = self.drift.moved(*sample, set(self._versions.tolist())) if self.drift and sample else set()
        if whole or not self._begun:
            return self._whole(table, now_ms)
        slots = len(self._members)
        self._turns.grow(slots)
        self._turns.date(first_ms)
        keys, alive = table.touched(since)
        newer = np.union1d(np.setdiff1d(self._newer, keys), keys[alive])
        left = np.union1d(np.setdiff1d(self._left, keys), keys[~alive])
        newer_of, left_of = shard_of(newer, slots), shard_of(left, slots)
        counts = np.bincount(newer_of, minlength=slots)
        due = self._turns.due([phase(slot) for slot in range(slots)], now_ms)
        due |= np.isin(self._versions, list(moved))
        due |= counts + np.bincount(left_of, minlength=slots) > max(1, self._most // (2 * NEWER_SHARE))
        fewest = np.argsort(np.where(due, 0, counts), kind="stable")
        due[fewest[np.cumsum(np.where(due, 0, counts)[fewest]) > self._most]] = True
        members = [
            np.union1d(np.setdiff1d(self._members[slot], left[left_of == slot]), newer[newer_of == slot])
            for slot in np.flatnonzero(due).tolist()
        ]
        if max(map(len, members), default=0) > self._most:
            return self._whole(table, now_ms)
        stay = left[~due[left_of]]
        return ItemPlan(
            self, self._plans, now_ms, slots, np.flatnonzero(due), members, newer[~due[newer_of]], stay
        )

    def _whole(self, table: LookupTable, now_ms: int) -> ItemPlan:
        """Plan all vectors, in slots that are half full."""
        ids = np.sort(table.keys)
        slots = max(1, -(-2 * len(ids) // self._most))
        while len(ids) and np.bincount(shard_of(ids, slots)).max() > self._most:
            slots *= 2
        of_ids = shard_of(ids, slots)
        order = np.argsort(of_ids, kind="stable")
        members = np.split(ids[order], np.searchsorted(of_ids[order], np.arange(1, slots)))
        return ItemPlan(self, self._plans, now_ms, slots, np.arange(slots), members, _NONE, _NONE, whole=True)

    def published(self, plan: ItemPlan) -> None:
        """Take over a plan whose version is served."""
        self._begun = True
        if plan.whole:
            self._turns = Turns(self._rule.period_ms)
            self._turns.grow(plan.slots)
            self._members, self._versions = [_NONE] * plan.slots, np.zeros(plan.slots, np.int64)
        self._turns.computed(plan.due, plan.now_ms)
        self._versions[plan.due] = plan.number
        for slot, ids in zip(plan.due.tolist(), plan.members, strict=True):
            self._members[slot] = ids
        self._newer, self._left = plan.newer, plan.left
        telemetry.COMPUTED_ITEMS.inc(len(plan.ids))
        telemetry.OLDEST_ITEM.set(self._turns.oldest_s(plan.now_ms))
        if self.drift is not None:
            self.drift.published(plan.number)
            telemetry.ITEM_DRIFT.set(self.drift.most)


@dataclass(frozen=True, eq=False)
class ItemPlan:
    """Items whose vectors one version computes.

    Args:
        refresh: whose state the plan was made from.
        number: of the plan.
        now_ms: event time of the version.
        slots: number of slots.
        due: slots i64[m].
        members: ids of each due slot, ascending.
        newer: further ids i64[k].
        left: ids of the other slots' blobs that have left.
        whole: nothing of the version before stays.
    """

    refresh: ItemRefresh
    number: int
    now_ms: int
    slots: int
    due: I64
    members: Sequence[I64]
    newer: I64
    left: I64
    whole: bool = False

    @property
    def ids(self) -> I64:
        """Ids i64[n] to be computed: of the due slots, then the newer."""
        return np.concatenate([*self.members, self.newer])

    @property
    def sizes(self) -> list[int]:
        """Ids of each blob with vectors."""
        return [*map(len, self.members), len(self.newer)]

    @property
    def tags(self) -> list[str]:
        """Tags of the blobs: those of `sizes`, then the ids that left."""
        return [*map(str, self.due.tolist()), NEWER, LEFT]

    def without(self, failed: Bools) -> ItemPlan:
        """Plan without some of `ids`, whose features could not be extracted."""
        if not failed.any():
            return self
        parts = np.split(failed, np.cumsum(self.sizes)[:-1])
        kept = [ids[~mask] for ids, mask in zip([*self.members, self.newer], parts, strict=True)]
        left = np.union1d(self.left, self.newer[parts[-1]])
        return replace(self, members=kept[:-1], newer=kept[-1], left=left)

    def published(self) -> None:
        """Note that the version is served."""
        self.refresh.published(self)


def item_refresh_of(pipeline: Pipeline, rule: RefreshRule) -> ItemRefresh | None:
    """Refresh of the item vectors; None where every version computes all of them."""
    towers = pipeline.prerank
    if not rule.period_ms or pipeline.items is None or not isinstance(towers, TwoTower):
        return None
    return ItemRefresh(rule, towers.out)
