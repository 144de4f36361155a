"""Dynamic table whose rows are in DRAM or, failing that, in a store on SSD (trainer.tables.tiers)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import contiguous
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import CHUNK, MISSING_ROW, DynamicTable, Floats, Keys, Missing
from livectr.trainer.tables import telemetry
from livectr.trainer.tables.spill import Bytes, Mask, SpillStore

T = TypeVar("T")
U32 = npt.NDArray[np.uint32]


class TierStore(Protocol):
    """Services of trainer.tables.tiers.Tiers for its tables.

    Attributes:
        part_rows: most rows that a table takes at once without a batch
    """

    @property
    def part_rows(self) -> int:
        """Most rows that a table takes at once without a batch."""

    def run(self, job: Callable[[SpillStore], T]) -> Future[T]:
        """Queue a job for the store's thread, first in, first out."""

    def put_up(self, table: TieredTable, keys: Keys, packed: Bytes) -> None:
        """Put rows uint8[n, width] of keys int64[n] into DRAM; none may be there."""

    def scan(self, number: int) -> Iterator[tuple[Keys, Bytes]]:
        """Read all rows of table `number` from the store, in chunks, after all queued writes."""

    def invalidate(self, number: int, keys: Keys) -> None:
        """Mark prefetched rows of keys int64[n] as outdated."""

    def evict(self) -> None:
        """Move least recently used rows to the store, if DRAM is over its budget."""


class TieredTable(DynamicTable):
    """DynamicTable whose rows may be in a store; `Tiers.table` makes it.

    All calls that take keys find rows in both tiers. Exceptions are `find`, `usage` and
    `FieldTables`, which read DRAM only: call `Tiers.promote` before.

    Attributes:
        spilled_rows: rows that only the store has
        number: of this table in the store
    """

    sweeps = False

    def __init__(self, tiers: TierStore, number: int, layout: RowLayout, *, name: str, seed: int) -> None:
        super().__init__(layout, name=name, seed=seed, track=True)
        self.spilled_rows = 0
        self._tiers = tiers
        self.number = number
        self._width = 4 * layout.stride + 8
        self._evicted: dict[int, list[Keys]] = {}
        """Generation → keys that changed in it and were evicted then."""
        self._forgotten = 1  # no mark is below 1: changes of the first generation are never exported

    def __len__(self) -> int:
        return super().__len__() + self.spilled_rows

    @property
    def dram_rows(self) -> int:
        """Rows in DRAM."""
        return super().__len__()

    @property
    def listed(self) -> int:
        """As DynamicTable's, with the changed keys that were evicted."""
        return super().listed + sum(len(keys) for parts in self._evicted.values() for keys in parts)

    # ── between the tiers ──

    def missing(self, keys: Keys) -> Keys:
        """Keys of int64[n] that are not in DRAM."""
        missing: Keys = keys[self.find(keys) == MISSING_ROW]
        return missing

    def fetch(self, keys: Keys) -> Future[tuple[Mask, Bytes]]:
        """Start to read int64[n] keys from the store."""

        def get(store: SpillStore) -> tuple[Mask, Bytes]:
            on_ssd, packed = store.get(self.number, keys, self._width)
            telemetry.SPILL_BYTES.labels("read").inc(packed.nbytes)
            return on_ssd, packed

        reading: Future[tuple[Mask, Bytes]] = self._tiers.run(get)
        return reading

    def promote(self, keys: Keys) -> int:
        """Move the rows of int64[n] keys from the store to DRAM; returns their number."""
        missing = np.unique(self.missing(keys)) if self.spilled_rows else keys[:0]
        if not len(missing):
            return 0
        on_ssd, packed = self.fetch(missing).result()
        self._tiers.put_up(self, missing[on_ssd], packed)
        return int(on_ssd.sum())

    def evicted(self, keys: Keys, generations: U32) -> None:
        """Note keys int64[n] whose rows went to the store, and the generations uint32[n] of their changes."""
        for generation in np.unique(generations[generations > self._forgotten]).tolist():
            self._evicted.setdefault(generation, []).append(keys[generations == generation])
        self.spilled_rows += len(keys)

    # ── a table, whichever tier its rows are in ──

    def find_or_insert(self, keys: npt.ArrayLike) -> U32:
        """Row numbers uint32[n] of keys int64[n]: rows are promoted from the store, missing keys inserted."""
        self.promote(np.asarray(keys))
        return super().find_or_insert(keys)

    def lookup(self, keys: npt.ArrayLike, *, missing: Missing = "initial") -> Floats:
        """Values float32[n, D] of keys int64[n], of both tiers; rows stay where they are."""
        out = super().lookup(keys, missing=missing)
        requested = np.asarray(keys)
        places = (
            np.flatnonzero(self.find(requested) == MISSING_ROW)
            if self.spilled_rows
            else np.empty(0, np.int64)
        )
        if len(places):
            on_ssd, packed = self.fetch(requested[places]).result()
            out[places[on_ssd]] = packed.view(np.float32)[:, : self.layout.dim]
        return out

    def update(self, keys: npt.ArrayLike, grads: npt.ArrayLike) -> int:
        """Run an optimiser step after the keys' rows were promoted from the store; see `DynamicTable`."""
        self.promote(np.asarray(keys))
        return super().update(keys, grads)

    def assign(self, keys: npt.ArrayLike, rows: npt.ArrayLike) -> int:
        """As DynamicTable's, within the budget: a checkpoint may be larger than DRAM."""
        given, values = np.asarray(keys), np.asarray(rows)
        unique, size = 0, min(CHUNK, self._tiers.part_rows)
        for start in range(0, len(given), size):
            part = given[start : start + size]
            self.promote(part)
            unique += super().assign(part, values[start : start + size])
            self._tiers.evict()
        return unique

    def erase(self, keys: npt.ArrayLike, *, announce: bool = True) -> int:
        """Erase keys int64[n] in both tiers; returns the number that existed. Waits for the store."""
        given = contiguous(keys, np.int64, (None,))
        self.promote(given)
        erased = super().erase(given, announce=announce)
        self._tiers.run(lambda store: store.erase(self.number, given)).result()
        self._tiers.invalidate(self.number, given)
        return erased

    def _touch(self, keys: Keys) -> None:
        self.promote(keys)
        super()._touch(keys)
        self._tiers.evict()

    def clear(self) -> None:
        """Erase all keys in both tiers. Waits for the store."""
        super().clear()
        self._tiers.run(lambda store: store.clear(self.number)).result()
        self.spilled_rows = 0
        self._evicted.clear()

    def export(self, since: int = 0, *, state: bool = True) -> tuple[Keys, Floats]:
        """As DynamicTable's, in the order of `chunks`; a table may be larger than memory."""
        parts = list(self.chunks(since, state=state))
        width = self.layout.stride if state else self.layout.dim
        empty = np.empty(0, np.int64), np.empty((0, width), np.float32)
        keys, rows = zip(*parts, strict=True) if parts else zip(empty, strict=True)
        return np.concatenate(keys), np.concatenate(rows)

    def chunks(self, since: int = 0, *, state: bool = True) -> Iterator[tuple[Keys, Floats]]:
        """As DynamicTable's: rows in DRAM first, then those in the store."""
        yield from super().chunks(since, state=state)
        width = self.layout.stride if state else self.layout.dim
        if since:
            evicted = [keys for g, parts in self._evicted.items() if g > since for keys in parts]
            if evicted:
                yield from self._evicted_since(np.unique(np.concatenate(evicted)), since, state)
        elif self.spilled_rows:
            for keys, packed in self._tiers.scan(self.number):
                only = self.find(keys) == MISSING_ROW
                if only.any():
                    yield keys[only], _floats(packed[only], width)

    def changed_keys(self, since: int = 0) -> Keys:
        """As DynamicTable's; of evicted rows, the keys of those that are erased meanwhile, too."""
        if not since:
            return np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in self.chunks(state=False))])
        evicted = [keys for g, parts in self._evicted.items() if g > since for keys in parts]
        return np.unique(np.concatenate([super().changed_keys(since), *evicted]))

    def _evicted_since(self, keys: Keys, since: int, state: bool) -> Iterator[tuple[Keys, Floats]]:
        """Rows of keys that changed after `since` and were evicted then, unless DRAM's chunks have them."""
        width = self.layout.stride if state else self.layout.dim
        for start in range(0, len(keys), CHUNK):
            part = keys[start : start + CHUNK]
            numbers = self.find(part)
            in_dram = numbers != MISSING_ROW
            back = numbers[in_dram]
            back = back[self.generations(back) <= since]
            if len(back):
                yield self.read(back, state=state)
            on_ssd, packed = self.fetch(part[~in_dram]).result()
            if on_ssd.any():
                yield part[~in_dram][on_ssd], _floats(packed, width)

    def erased(self, since: int) -> Keys:
        """Keys int64[m], rising, that were erased after mark `since` and are in neither tier."""
        keys = super().erased(since)
        if not self.spilled_rows or not len(keys):
            return keys
        return keys[~self.fetch(keys).result()[0]]

    def forget(self, mark: int) -> None:
        """Free the lists of changes up to `mark`, of evicted rows, too."""
        super().forget(mark)
        self._forgotten = max(self._forgotten, mark)
        self._evicted = {g: keys for g, keys in self._evicted.items() if g > mark}


def _floats(packed: Bytes, width: int) -> Floats:
    """First `width` floats of packed rows."""
    return np.ascontiguousarray(packed.view(np.float32)[:, :width])
