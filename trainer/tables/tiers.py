"""LRU tiers for tables larger than memory: DRAM over SSD, with prefetch of the next batch's rows.

    prefetch(n + 1)   start to read the rows of batch n + 1 that are not in DRAM, in a thread
    promote(n)        put the rows of batch n into DRAM: prefetched rows, and rows evicted since
    …                 forward and backward of batch n
    evict()           over the budget: move least recently used rows to SSD, but none of batch n + 1

These are the two lower levels of the parameter hierarchy of FeatureBox (Zhao et al., §2). A row is in DRAM
or, failing that, in the store; the store's older copy of a row in DRAM is never read. Rows move unchanged,
and initial values depend on the key alone: a model has the same bits, however small its DRAM is.

A prefetched row is used only if it is still current. Each row that is evicted or erased meanwhile is
invalidated, and `promote` reads it anew. A move between tiers is no change: `export(since)` gives the rows
that changed, in whatever tier they are.

The store is emptied at every start; a checkpoint holds both tiers and fills it again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from livectr.kernels.errors import ConfigError, UserError
from livectr.kernels.keys.unique import unique_segments
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import CHUNK, MISSING_ROW, Keys
from livectr.trainer import telemetry
from livectr.trainer.tables.spill import Bytes, Mask, SpillStore
from livectr.trainer.tables.tiered_table import U32, T, TieredTable

SLACK = 32
"""Eviction frees 1/SLACK of the budget at once, since each choice is a pass over all stamps."""

_NO_KEYS = np.empty(0, np.int64)


class Prefetched:
    """Rows of a batch that a thread reads from SSD.

    Attributes:
        keys: table → unique keys of the batch
        requested: table → keys that are read
        reads: table → the rows, once they are read
        pinned: table → keys that were in DRAM and must stay there
        invalid: table → keys that were evicted or erased since
    """

    def __init__(self, keys: Mapping[str, Keys]) -> None:
        self.keys = keys
        self.requested: dict[str, Keys] = {}
        self.reads: dict[str, Future[tuple[Mask, Bytes]]] = {}
        self.pinned: dict[str, Keys] = {}
        self.invalid: dict[str, list[Keys]] = {}


class Tiers:
    """Tiers of all tables of a rank, which share one budget and one store. Not thread-safe.

    Args:
        spill: folder of the store, on an SSD.
        dram_bytes: budget of rows in DRAM with their index, over all tables. A step may exceed it by the rows
            of its batch.
        rank: this rank.

    Raises:
        ConfigError: the folder cannot be used.
    """

    def __init__(self, spill: Path, dram_bytes: int, rank: int) -> None:
        self.tables: dict[str, TieredTable] = {}
        self.budget_rows = 0
        self.folder = spill
        self._dram_bytes = dram_bytes
        self._stamp = 0
        self._store = SpillStore(spill, rank)
        self._worker = ThreadPoolExecutor(
            1, thread_name_prefix="spill"
        )  # in order: a read sees earlier writes
        self._writing: list[Future[None]] = []
        self._failure: UserError | None = None
        self._open: weakref.WeakSet[Prefetched] = weakref.WeakSet()

    def table(self, layout: RowLayout, *, name: str, seed: int) -> TieredTable:
        """Make a table; all tables of a rank have the same layout.

        Raises:
            ConfigError: the budget is too small.
        """
        table = TieredTable(self, len(self.tables), layout, name=name, seed=seed)
        self.budget_rows = self._dram_bytes // table.row_bytes
        if self.budget_rows < SLACK:
            raise ConfigError(
                f"dram_bytes is {self._dram_bytes}, less than {SLACK} rows of {table.row_bytes} bytes; "
                "give it more"
            )
        self.tables[name] = table
        return table

    def prefetch(self, keys: Mapping[str, Keys]) -> Prefetched:
        """Start to read the rows of a batch that are not in DRAM; keys: table → int64[n]."""
        names = list(keys)
        sizes = [len(keys[name]) for name in names]
        unique = unique_segments(np.concatenate([_NO_KEYS, *keys.values()]), np.cumsum([0, *sizes]))
        prefetched = Prefetched(
            dict(zip(names, np.split(unique.keys, unique.bounds[1:-1]), strict=True)) if names else {}
        )
        for name, wanted in prefetched.keys.items():
            table = self.tables[name]
            absent = table.find(wanted) == MISSING_ROW
            prefetched.pinned[name] = wanted[~absent]
            if table.spilled_rows and absent.any():
                prefetched.requested[name] = wanted[absent]
                prefetched.reads[name] = table.fetch(wanted[absent])
        self._open.add(prefetched)
        return prefetched

    def promote(self, prefetched: Prefetched) -> None:
        """Move all stored rows of a batch to DRAM, before the tables are read."""
        self._stamp += 1
        for name, keys in prefetched.keys.items():
            table = self.tables[name]
            table.now(self._stamp)
            missing = table.missing(keys)
            telemetry.TIER_LOOKUPS.labels("dram").inc(len(keys) - len(missing))
            if name in prefetched.reads:
                missing = self._promote_prefetched(table, missing, prefetched)
            with telemetry.TIER_WAIT_SECONDS.time():
                late = table.promote(missing)
            telemetry.TIER_LOOKUPS.labels("ssd").inc(late)
            telemetry.TIER_LOOKUPS.labels("new").inc(len(missing) - late)
        self._open.discard(prefetched)

    def evict(self) -> None:
        """Move least recently used rows to the store, if DRAM is over its budget. At a step boundary.

        Rows that an open prefetch found in DRAM stay. The call waits for the writes of the call before, so
        that at most the writes of a single call are in flight.

        Raises:
            UserError: the store cannot be written.
        """
        in_dram = self._count()
        if in_dram <= self.budget_rows:
            return
        for writing in self._writing:
            writing.result()
        self._writing.clear()
        for name, keys in self._coldest(in_dram - self.budget_rows + self.budget_rows // SLACK):
            self.tables[name].evict(keys)
        self._count()

    def close(self) -> None:
        """Remove the store; the tables keep their rows in DRAM."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._store.close()

    # ── for the tables ──

    def run(self, job: Callable[[SpillStore], T]) -> Future[T]:
        """Queue a job for the store's thread, first in, first out. After a failure all later jobs fail."""

        def work() -> T:
            if self._failure is not None:
                raise self._failure
            try:
                return job(self._store)
            except UserError as error:
                self._failure = error
                raise

        return self._worker.submit(work)

    def write(self, number: int, keys: Keys, packed: Bytes) -> None:
        """Put rows into the store, asynchronously."""
        telemetry.SPILL_BYTES.labels("written").inc(packed.nbytes)
        self._writing.append(self.run(lambda store: store.put(number, keys, packed)))

    def scan(self, number: int, width: int) -> Iterator[tuple[Keys, Bytes]]:
        """Read all rows of a table from the store, after all queued writes."""
        self.run(lambda store: None).result()
        return self._store.scan(number, width, CHUNK)

    def invalidate(self, name: str, keys: Keys) -> None:
        """Mark prefetched rows of these keys as outdated."""
        for prefetched in self._open:
            prefetched.invalid.setdefault(name, []).append(keys)

    # ──

    def _count(self) -> int:
        """Count the rows in DRAM, and set the metrics of both tiers."""
        in_dram = sum(table.dram_rows for table in self.tables.values())
        telemetry.TIER_ROWS.labels("dram").set(in_dram)
        telemetry.TIER_ROWS.labels("ssd").set(sum(table.spilled_rows for table in self.tables.values()))
        return in_dram

    def _promote_prefetched(self, table: TieredTable, missing: Keys, prefetched: Prefetched) -> Keys:
        """Put prefetched rows that are still valid into DRAM; returns the keys that are still missing."""
        requested, invalid = prefetched.requested[table.name], prefetched.invalid.get(table.name, [])
        with telemetry.TIER_WAIT_SECONDS.time():
            on_ssd, packed = prefetched.reads[table.name].result()
        outdated = np.isin(requested, np.concatenate([requested[:0], *invalid]))
        valid = np.isin(requested, missing, assume_unique=True) & ~outdated
        stored = valid & on_ssd
        table.promote_rows(requested[stored], packed[stored[on_ssd]])
        telemetry.TIER_LOOKUPS.labels("ahead").inc(int(stored.sum()))
        new = int((valid & ~on_ssd).sum())
        telemetry.TIER_LOOKUPS.labels("new").inc(new)
        return np.setdiff1d(missing, requested[valid], assume_unique=True)

    def _coldest(self, count: int) -> list[tuple[str, Keys]]:
        """Least recently used `count` rows in DRAM, but none that an open prefetch pins. Ties are broken by
        table, then key."""
        names = list(self.tables)
        candidates: list[tuple[U32, Keys]] = []
        for name in names:
            table = self.tables[name]
            pins = (prefetched.pinned.get(name, _NO_KEYS) for prefetched in self._open)
            pinned = np.unique(np.concatenate([_NO_KEYS, *pins]))
            keys = table.oldest(count + len(pinned))
            keys = np.sort(keys[~np.isin(keys, pinned)])
            candidates.append((table.usage(keys)[0], keys))
        stamps = np.concatenate([stamp for stamp, _ in candidates])
        chosen = np.zeros(len(stamps), np.bool_)
        chosen[np.argsort(stamps, kind="stable")[:count]] = True
        ends = np.cumsum([len(keys) for _, keys in candidates])[:-1]
        parts = zip(names, candidates, np.split(chosen, ends), strict=True)
        return [(name, keys[part]) for name, (_, keys), part in parts if part.any()]
