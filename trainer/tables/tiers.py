"""LRU tiers for tables larger than memory: DRAM over SSD, with prefetch of the next batch's rows.

    prefetch(n + 1)   start to read the rows of batch n + 1 that are not in DRAM, in a thread
    promote(n)        put the rows of batch n into DRAM: prefetched rows, and rows evicted since
    …                 forward and backward of batch n
    evict()           over the budget: move least recently used rows to SSD, but none of batch n + 1

These are the two lower levels of the parameter hierarchy of FeatureBox (Zhao et al., §2). A row is in DRAM
or, failing that, in the store; the store's older copy of a row in DRAM is never read. Rows move unchanged,
and initial values depend on the key alone: a model has the same bits, however small its DRAM is.

A prefetched row is used only if it is still current. Each row that is evicted or erased meanwhile is
invalidated, and `promote` reads it again. A move between tiers is no change: `export(since)` gives the rows
that changed, in whatever tier they are.

The store is emptied at every start; a checkpoint holds both tiers and fills it again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from livectr.kernels.keys.unique import unique_segments
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import CHUNK, MISSING_ROW, Keys
from livectr.kernels.tiers.moves import Moves
from livectr.system.errors import ConfigError, InternalError, UserError
from livectr.trainer.tables import telemetry
from livectr.trainer.tables.spill import Bytes, Mask, SpillStore
from livectr.trainer.tables.tiered_table import U32, T, TieredTable

SLACK = 32
"""Eviction frees 1/SLACK of the budget at once, since each choice is a pass over all stamps."""

_NO_KEYS = np.empty(0, np.int64)
_SPREAD = np.int64(-0x61C8864680B583EB)  # 2⁶⁴ / golden ratio: the numbers of tables spread over all bits


class Prefetched:
    """Rows of a batch, some of which a thread reads from SSD.

    Args:
        tables: S tables.
        bounds: int64[S + 1]; table s has the keys from bounds[s] to bounds[s + 1].
        keys: int64[U], unique in a table.
        rows: uint32[U], row numbers of keys that are in DRAM and must stay there; MISSING_ROW of the others.

    Attributes:
        requested: places int64[R] in `keys` of the keys that are read
        reading: bool[R], the keys that the store has, and their rows; None: none is read
        gone: keys that were evicted or erased since, as `_names` gives them
    """

    def __init__(self, tables: Sequence[TieredTable], bounds: Keys, keys: Keys, rows: U32) -> None:
        self.tables, self.bounds, self.keys, self.rows = tables, bounds, keys, rows
        self.numbers = np.repeat(np.array([table.number for table in tables], np.uint32), np.diff(bounds))
        self.requested = self.stored(rows == MISSING_ROW)
        self.reading: Future[tuple[Mask, Bytes]] | None = None
        self.gone: list[Keys] = []

    def stored(self, missing: Mask) -> Keys:
        """Places of missing keys that the store may have."""
        below = np.array([table.spilled_rows > 0 for table in self.tables], np.bool_)
        return np.flatnonzero(missing & np.repeat(below, np.diff(self.bounds)))


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
        self._moves: Moves | None = None
        self._writing: list[Future[None]] = []
        self._failure: UserError | None = None
        self._open: weakref.WeakSet[Prefetched] = weakref.WeakSet()

    def table(self, layout: RowLayout, *, name: str, seed: int) -> TieredTable:
        """Make a table; all tables of a rank have the same layout.

        Raises:
            ConfigError: the budget is too small.
        """
        table = TieredTable(self, len(self.tables), layout, name=name, seed=seed)
        self._moves = self._moves or Moves(layout)
        self.budget_rows = self._dram_bytes // table.row_bytes
        if self.budget_rows < SLACK:
            raise ConfigError(
                f"dram_bytes is {self._dram_bytes}, less than {SLACK} rows of {table.row_bytes} bytes; "
                "give it more"
            )
        self.tables[name] = table
        return table

    @property
    def moves(self) -> Moves:
        """Moves of rows of the tables' layout."""
        if self._moves is None:
            raise InternalError("tiers without a table move no rows")
        return self._moves

    @property
    def part_rows(self) -> int:
        """Most rows that a table takes at once without a batch: memory of more rows would stay in use."""
        return max(SLACK, self.budget_rows // SLACK)

    def prefetch(self, keys: Mapping[str, Keys]) -> Prefetched:
        """Start to read the rows of a batch that are not in DRAM; keys: table → int64[n]."""
        tables = [self.tables[name] for name in keys]
        sizes = [len(wanted) for wanted in keys.values()]
        unique = unique_segments(np.concatenate([_NO_KEYS, *keys.values()]), np.cumsum([0, *sizes]))
        rows = self.moves.find(tables, unique.bounds, unique.keys) if tables else np.empty(0, np.uint32)
        prefetched = Prefetched(tables, unique.bounds, unique.keys, rows)
        if len(prefetched.requested):
            prefetched.reading = self._read(prefetched, prefetched.requested)
        self._open.add(prefetched)
        return prefetched

    def promote(self, prefetched: Prefetched) -> None:
        """Move all stored rows of a batch to DRAM, before the tables are read."""
        self._open.discard(prefetched)
        self._stamp += 1
        if not prefetched.tables:
            return
        for table in prefetched.tables:
            table.now(self._stamp)
        missing = self.moves.find(prefetched.tables, prefetched.bounds, prefetched.keys) == MISSING_ROW
        absent, ahead = int(missing.sum()), 0
        telemetry.TIER_LOOKUPS.labels("dram").inc(len(missing) - absent)
        if prefetched.reading is not None:
            ahead = self._promote_prefetched(prefetched, prefetched.reading, missing)
            telemetry.TIER_LOOKUPS.labels("ahead").inc(ahead)
        late, places = 0, prefetched.stored(missing)
        if len(places):
            with telemetry.TIER_WAIT_SECONDS.time():
                on_ssd, packed = self._read(prefetched, places).result()
            late = self._put_up(prefetched, places[on_ssd], packed)
        telemetry.TIER_LOOKUPS.labels("ssd").inc(late)
        telemetry.TIER_LOOKUPS.labels("new").inc(absent - ahead - late)

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
        # From the last on: tables are filled one by one with equal stamps, and a free row number stays in
        # memory. So the table that is filled gives way, not those before it.
        tables = list(self.tables.values())[::-1]
        pinned = [(each.tables, each.bounds, each.rows) for each in self._open if each.tables]
        excess = in_dram - self.budget_rows + self.budget_rows // SLACK
        bounds, rows = self.moves.coldest(tables, excess, pinned)
        keys, generations, packed = self.moves.evict(tables, bounds, rows)
        for table, begin, end in zip(tables, bounds[:-1], bounds[1:], strict=True):
            if begin < end:
                table.evicted(keys[begin:end], generations[begin:end])
        numbers = np.repeat(np.array([table.number for table in tables], np.uint32), np.diff(bounds))
        self._invalidate(_names(numbers, keys))
        fresh = generations > 0  # the store still has the rows that have not changed
        if not fresh.all():
            numbers, keys, packed = numbers[fresh], keys[fresh], packed[fresh]
        if len(keys):
            self._write(numbers, keys, packed)
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

    def put_up(self, table: TieredTable, keys: Keys, packed: Bytes) -> None:
        """Put rows of a table that were read from the store into DRAM; none may be there."""
        self.moves.promote([table], np.array([0, len(keys)]), keys, packed)
        table.spilled_rows -= len(keys)

    def scan(self, number: int) -> Iterator[tuple[Keys, Bytes]]:
        """Read all rows of a table from the store, after all queued writes."""
        self.run(lambda store: None).result()
        return self._store.scan(number, CHUNK)

    def invalidate(self, number: int, keys: Keys) -> None:
        """Mark prefetched rows of a table's keys as outdated."""
        self._invalidate(_names(np.full(len(keys), number, np.uint32), keys))

    # ──

    def _count(self) -> int:
        """Count the rows in DRAM, and set the metrics of both tiers."""
        in_dram = sum(table.dram_rows for table in self.tables.values())
        telemetry.TIER_ROWS.labels("dram").set(in_dram)
        telemetry.TIER_ROWS.labels("ssd").set(sum(table.spilled_rows for table in self.tables.values()))
        return in_dram

    def _invalidate(self, names: Keys) -> None:
        for prefetched in self._open:
            prefetched.gone.append(names)

    def _read(self, prefetched: Prefetched, places: Keys) -> Future[tuple[Mask, Bytes]]:
        """Start to read the keys at these places of a batch."""
        numbers, keys, width = prefetched.numbers[places], prefetched.keys[places], self.moves.width

        def get(store: SpillStore) -> tuple[Mask, Bytes]:
            on_ssd, packed = store.get(numbers, keys, width)
            telemetry.SPILL_BYTES.labels("read").inc(packed.nbytes)
            return on_ssd, packed

        return self.run(get)

    def _write(self, numbers: U32, keys: Keys, packed: Bytes) -> None:
        """Put rows into the store, asynchronously."""
        telemetry.SPILL_BYTES.labels("written").inc(packed.nbytes)
        self._writing.append(self.run(lambda store: store.put(numbers, keys, packed)))

    def _promote_prefetched(
        self, prefetched: Prefetched, reading: Future[tuple[Mask, Bytes]], missing: Mask
    ) -> int:
        """Put prefetched rows that are still valid into DRAM; returns their number.

        Valid keys are no longer `missing` after the call, also those that the store lacks.
        """
        places = prefetched.requested
        with telemetry.TIER_WAIT_SECONDS.time():
            on_ssd, packed = reading.result()
        valid = missing[places]
        if prefetched.gone:
            names = _names(prefetched.numbers[places], prefetched.keys[places])
            valid &= ~self.moves.is_one_of(np.concatenate(prefetched.gone), names)
        missing[places[valid]] = False
        stored = valid & on_ssd
        return self._put_up(prefetched, places[stored], packed[stored[on_ssd]])

    def _put_up(self, prefetched: Prefetched, places: Keys, packed: Bytes) -> int:
        """Put rows of the keys at these rising places of a batch into DRAM; returns their number."""
        bounds = np.searchsorted(places, prefetched.bounds)
        self.moves.promote(prefetched.tables, bounds, prefetched.keys[places], packed)
        for table, moved in zip(prefetched.tables, np.diff(bounds).tolist(), strict=True):
            table.spilled_rows -= moved
        return len(places)


def _names(numbers: U32, keys: Keys) -> Keys:
    """Names int64[n] of (table, key) pairs. Two pairs may share a name: then a row is read again in vain."""
    return keys ^ (numbers.astype(np.int64) * _SPREAD)
