"""Tables larger than memory: frequent rows in DRAM, the rest on SSD, the next batch's rows read ahead.

    prefetch(n + 1)   which rows are not in DRAM? a thread reads those that the store has
    promote(n)          what was read for batch n, and what has left DRAM since, goes up: forward finds all
    …                 forward, backward of batch n
    evict()          over the budget: the least recently used rows go down, but not those of batch n + 1

The two lower levels of the parameter hierarchy that FeatureBox builds on (Zhao et al., §2). A row is in DRAM
or, failing that, in the store; a copy that a row in DRAM still has below is never read. Rows move as they
are, and initial values depend on the key alone: a model has the same bits however small its DRAM is.

What is read ahead for batch n + 1 is used only for rows that nothing happened to since: each row that goes
down or is erased in between is struck off, and `promote` reads it anew. Moving a row is no change:
`export(since)` tells the rows that did change, wherever they are.

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
from livectr.trainer.tables.spill import Bytes, Found, SpillStore
from livectr.trainer.tables.tiered_table import U32, T, TieredTable

SLACK = 32
"""Over the budget, rows go down until a SLACK-th of it is free: to choose them is a pass over all stamps."""

_NONE = np.empty(0, np.int64)


class Prefetched:
    """A batch's keys by table, each once, and the rows of those not in DRAM, which a thread is reading."""

    def __init__(self, keys: Mapping[str, Keys]) -> None:
        self.keys = keys
        self.asked: dict[str, Keys] = {}
        self.reads: dict[str, Future[tuple[Found, Bytes]]] = {}
        self.kept: dict[str, Keys] = {}
        """Those that were in DRAM, and ought to stay."""
        self.gone: dict[str, list[Keys]] = {}
        """What went down or was erased since."""


class Tiers:
    """Both tiers of all tables of a rank, which share one budget and one store.

    Not for several threads: reading ahead is all that runs beside the caller.

    Args:
        spill: folder of the store, on an SSD.
        dram_bytes: for rows in DRAM with their index, over all tables. What a step needs beyond it is there
            for the step: the rows of its batch.

    Raises:
        ConfigError: for a folder that cannot be used.
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
        """A new table; all of a rank's have one layout. Raises ConfigError where the budget is too small."""
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
        """Start to read what DRAM has not of a batch's rows, int64[n] keys by table, for `promote`."""
        names = list(keys)
        sizes = [len(keys[name]) for name in names]
        unique = unique_segments(np.concatenate([_NONE, *keys.values()]), np.cumsum([0, *sizes]))
        ahead = Prefetched(
            dict(zip(names, np.split(unique.keys, unique.bounds[1:-1]), strict=True)) if names else {}
        )
        for name, wanted in ahead.keys.items():
            table = self.tables[name]
            absent = table.find(wanted) == MISSING_ROW
            ahead.kept[name] = wanted[~absent]
            if table.spilled_rows and absent.any():
                ahead.asked[name] = wanted[absent]
                ahead.reads[name] = table.fetch(wanted[absent])
        self._open.add(ahead)
        return ahead

    def promote(self, ahead: Prefetched) -> None:
        """Put all rows of a batch that the store has into DRAM, before the tables are read."""
        self._stamp += 1
        for name, keys in ahead.keys.items():
            table = self.tables[name]
            table.now(self._stamp)
            missing = table.missing(keys)
            telemetry.TIER_LOOKUPS.labels("dram").inc(len(keys) - len(missing))
            if name in ahead.reads:
                missing = self._take(table, missing, ahead)
            with telemetry.TIER_WAIT_SECONDS.time():
                late = table.promote(missing)
            telemetry.TIER_LOOKUPS.labels("ssd").inc(late)
            telemetry.TIER_LOOKUPS.labels("new").inc(len(missing) - late)
        self._open.discard(ahead)

    def evict(self) -> None:
        """Over the budget: move the least recently used rows to the store, but none that a prefetch found in
        DRAM. At a step boundary. Waits for the writes of the call before, so that one call's are under way at
        most. Raises UserError where the store cannot be written."""
        above = self._count()
        if above <= self.budget_rows:
            return
        for writing in self._writing:
            writing.result()
        self._writing.clear()
        for name, keys in self._coldest(above - self.budget_rows + self.budget_rows // SLACK):
            self.tables[name].evict(keys)
        self._count()

    def close(self) -> None:
        """Remove the store; the tables keep what is in DRAM."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._store.close()

    # ── for the tables ──

    def run(self, job: Callable[[SpillStore], T]) -> Future[T]:
        """A job of the store's thread, after all that were given before; after one failed, all fail."""

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
        """Put rows into the store, behind the caller."""
        telemetry.SPILL_BYTES.labels("written").inc(packed.nbytes)
        self._writing.append(self.run(lambda store: store.put(number, keys, packed)))

    def scan(self, number: int, width: int) -> Iterator[tuple[Keys, Bytes]]:
        """All rows of the store's table, after all writes given before."""
        self.run(lambda store: None).result()
        return self._store.scan(number, width, CHUNK)

    def invalidate(self, name: str, keys: Keys) -> None:
        """What was read ahead of these keys no longer counts."""
        for ahead in self._open:
            ahead.gone.setdefault(name, []).append(keys)

    # ──

    def _count(self) -> int:
        """Rows in DRAM."""
        above = sum(table.dram_rows for table in self.tables.values())
        telemetry.TIER_ROWS.labels("dram").set(above)
        telemetry.TIER_ROWS.labels("ssd").set(sum(table.spilled_rows for table in self.tables.values()))
        return above

    def _take(self, table: TieredTable, missing: Keys, ahead: Prefetched) -> Keys:
        """Put what was read ahead and still counts into DRAM; returns the missing keys that remain."""
        asked, gone = ahead.asked[table.name], ahead.gone.get(table.name, [])
        with telemetry.TIER_WAIT_SECONDS.time():
            found, packed = ahead.reads[table.name].result()
        counts = np.isin(asked, missing, assume_unique=True) & ~np.isin(
            asked, np.concatenate([asked[:0], *gone])
        )
        up = counts & found
        table.promote_rows(asked[up], packed[up[found]])
        telemetry.TIER_LOOKUPS.labels("ahead").inc(int(up.sum()))
        new = int((counts & ~found).sum())
        telemetry.TIER_LOOKUPS.labels("new").inc(new)
        return np.setdiff1d(missing, asked[counts], assume_unique=True)

    def _coldest(self, count: int) -> list[tuple[str, Keys]]:
        """The `count` rows in DRAM that were used longest ago (ties: by table, then key), without those that
        batches read ahead need."""
        names = list(self.tables)
        found: list[tuple[U32, Keys]] = []
        for name in names:
            table = self.tables[name]
            kept = np.unique(np.concatenate([_NONE, *(ahead.kept.get(name, _NONE) for ahead in self._open)]))
            keys = table.oldest(count + len(kept))
            keys = np.sort(keys[~np.isin(keys, kept)])
            found.append((table.usage(keys)[0], keys))
        stamps = np.concatenate([stamp for stamp, _ in found])
        chosen = np.zeros(len(stamps), np.bool_)
        chosen[np.argsort(stamps, kind="stable")[:count]] = True
        ends = np.cumsum([len(keys) for _, keys in found])[:-1]
        parts = zip(names, found, np.split(chosen, ends), strict=True)
        return [(name, keys[part]) for name, (_, keys), part in parts if part.any()]
