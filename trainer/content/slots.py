"""Slots of a content: up to 65,536 successive ids of a shard, which are computed and published together.

An id keeps its slot. Slots follow the order of the store's files, so that the features of a slot lie together
on disk. They depend on the files and not on the number of ranks, since a rank holds whole shards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.ingest.content.store import ContentStore
from livectr.trainer.content.turns import phase

SLOT_IDS = 1 << 16

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class Slots:
    """Slots of the ids that a rank's store holds, numbered in the order of their first id.

    Args:
        ids: of a full slot.

    Attributes:
        tags: "SHARD.NUMBER" of each slot, a part of its blobs' names.
        phases: of each slot, from 0 to 1.
    """

    def __init__(self, store: ContentStore, ids: int = SLOT_IDS) -> None:
        self._store, self._size = store, ids
        self._count = 0
        self._ids: I64 = np.empty(0, np.int64)
        self._slots: I32 = np.empty(0, np.int32)
        self._held: dict[int, int] = {}
        """Shard → ids."""
        self._numbers: dict[tuple[int, int], int] = {}
        self.tags: list[str] = []
        self.phases: list[float] = []

    def __len__(self) -> int:
        return len(self.tags)

    @property
    def ids(self) -> I64:
        """i64[n], in the order of the store; what is there stays as it is."""
        return self._ids[: self._count]

    @property
    def of_ids(self) -> I32:
        """Slot of each id, i32[n]."""
        return self._slots[: self._count]

    def extend(self) -> None:
        """Add the ids that the store has loaded since the last call."""
        new = self._store.ids_from(self._count)
        if not len(new):
            return
        slots, shards = np.empty(len(new), np.int32), self._store.shard_of(new)
        for shard in np.flatnonzero(np.bincount(shards)).tolist():
            places = np.flatnonzero(shards == shard)
            before = self._held.get(shard, 0)
            self._held[shard] = before + len(places)
            of_shard = (before + np.arange(len(places))) // self._size
            for number in range(int(of_shard[0]), int(of_shard[-1]) + 1):
                slots[places[of_shard == number]] = self._slot(shard, number)
        self._ids = _appended(self._ids, self._count, new)
        self._slots = _appended(self._slots, self._count, slots)
        self._count += len(new)

    def _slot(self, shard: int, number: int) -> int:
        slot = self._numbers.setdefault((shard, number), len(self.tags))
        if slot == len(self.tags):
            self.tags.append(f"{shard}.{number}")
            self.phases.append(phase(shard + number * self._store.shards))
        return slot


def _appended(array: npt.NDArray[Any], used: int, new: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Array with new values behind the used ones; it grows by doubling, and views of it stay valid."""
    if used + len(new) > len(array):
        grown = np.empty(max(used + len(new), 2 * len(array)), array.dtype)
        grown[:used] = array[:used]
        array = grown
    array[used : used + len(new)] = new
    return array
