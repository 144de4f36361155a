"""Write-back cache of host tables' hot rows in GPU memory (tier GPU → DRAM).

The embedding front over it is here, too.

A row is trained on the device and stays there until the budget is nearly full. Then rows that were not used
for long return to their host tables, a piece in each step. Rows that a batch needs and the device lacks
come from the host table, which therefore knows every key and inserts them in its
usual order. Between a `flush` and the next `backward` the host tables have every bit that they would have
without a device; checkpoints, exports and publishing read them then. The place of a row never changes a
result, so which rows leave is free.

    prefetch(n + 1) ─► distinct keys                                                   queued
    forward(n) ─► host table: find_or_insert, read what is new ─► room ─► insert ─► pool
               ─► n + 1: missing? ─► evict a piece ─► mark                             queued
               ─► wait for the mark ─► evicted rows and n + 1's cold rows: host table  in a thread
    backward(n) ─► gradients in order ─► one optimiser step per row, on the device     queued
    end_step(n) ─► the thread is done

So the caller's thread never waits for the device, if each batch is prefetched before the forward of the batch
before it. Else `forward` searches, and waits. Rows that are erased in between are searched again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.gpu_table.device_store import Target
from livectr.kernels.gpu_table.device_table import (
    NOTHING_LISTED,
    Batch,
    DeviceTable,
    Leaving,
    Listed,
    Listing,
    Occurrences,
    Search,
)
from livectr.kernels.runtime.arrays import contiguous
from livectr.kernels.runtime.device import CudaDevice, Mark
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.table import MISSING_ROW, DynamicTable, Floats, Keys, Missing, Rows
from livectr.system.errors import ConfigError

PIECE_ROWS = 1 << 14
"""Most rows that leave after a step."""
SPARE = 16
"""Inverse of the part of the budget that evictions keep free, at most for SPARE_PIECES pieces."""
SPARE_PIECES = 4
SPACES = 3
"""Batches that may be on the device at once: that of a forward without its backward, and two prefetched."""


@dataclass(frozen=True)
class Cold:
    """Rows of a batch's missing keys that a thread has read from their host tables.

    Args:
        known: bool[m], which of the listed keys were read; m is 0 where more keys are listed than were seen.
        rows: float32[m, stride].
    """

    known: npt.NDArray[np.bool_]
    rows: Floats


@dataclass(frozen=True)
class Ahead:
    """Search for the rows of the next batch, in flight.

    Args:
        search: of the batch.
        reading: its cold rows.
    """

    search: Search
    reading: Future[Cold]


class GpuCache:
    """Cache of host tables' rows on a device. Thread-safe: calls take turns.

    Args:
        tables: name → table, at least one, all of one layout and seed.
        budget_rows: maximum of rows on the device; a batch's distinct keys must fit.
        target: device class.

    Raises:
        ConfigError: there is no GPU, or a table has admission.
    """

    def __init__(
        self,
        tables: Mapping[str, DynamicTable],
        *,
        budget_rows: int,
        target: Target = CudaDevice,
    ) -> None:
        layouts, seeds = ({getattr(t, what) for t in tables.values()} for what in ("layout", "seed"))
        if len(layouts) != 1:
            raise ValueError(f"a cache needs tables of one row layout; {sorted(tables)} have {len(layouts)}")
        if len(seeds) != 1:
            raise ValueError(f"a cache needs tables of one seed; {sorted(tables)} have {len(seeds)}")
        if budget_rows < 1:
            raise ConfigError(f"a GPU's budget must be at least 1 row, not {budget_rows}")
        self.tables, self.budget_rows = dict(tables), budget_rows
        # The device rounds 16-bit values by the same random bits as the host's tables: of seed and name.
        names = [table.name for table in tables.values()]
        self.device = DeviceTable(layouts.pop(), names, seed=seeds.pop(), target=target)
        self.lock = threading.RLock()
        #: distinct keys of batches so far that were on the device, and that were not
        self.hits = self.misses = 0
        #: evicted rows so far, and evicted rows that had changed
        self.evicted = self.written_back = 0
        #: rows so far that were promoted before their batch
        self.prefetched = 0
        self._hosts = list(self.tables.values())
        self._rates = 0
        self._step = 1
        self._oldest = 1  # stamp from which on rows stay
        self._flushed = 0
        self._spaces = deque(f"{number} " for number in range(SPACES))
        self._coming: Occurrences | None = None
        self._ahead: Ahead | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="cold-rows")
        self._leaving: list[Leaving] = []

    def __len__(self) -> int:
        """Number of rows on the device, with those that leave."""
        return len(self.device)

    @property
    def spare_rows(self) -> int:
        """Least room that evictions keep free."""
        return min(self.budget_rows // SPARE, SPARE_PIECES * PIECE_ROWS)

    def space(self) -> str:
        """Name of the working memory of a new batch; the SPACES - 1 batches before it stay valid."""
        self._spaces.rotate()
        return self._spaces[0]

    def prefetch(self, given: Occurrences) -> None:
        """Names the batch after the next `fetch`, for `look_ahead`."""
        if self._ahead is None and self._coming is not None:  # no fetch, or an erasure, came between
            self.look_ahead()
        self._coming = given

    def fetch(self, given: Occurrences) -> Batch:
        """Promotes the rows of a step's keys, so that all are on the device. Waits without a search ahead.

        Raises:
            ConfigError: the distinct keys exceed the budget.
        """
        if not all(table.admits_all for table in self._hosts):
            raise ConfigError("a GPU cannot train tables with admission: switch admission or the GPU off")
        self.end_step()
        ahead, self._ahead = self._ahead, None
        if self._coming is given:
            self._coming = None
        notes = [table.tracks for table in self._hosts]  # a table may start to track later
        if ahead is None or ahead.search.given is not given or ahead.search.listing != _listing(notes):
            search, cold = self._search(given, notes), None
            self._settle()
        else:
            search, cold = ahead.search, ahead.reading.result()
        batch = search.batch()  # before a further wait
        if batch.distinct > self.budget_rows:
            raise ConfigError(
                f"a batch has {batch.distinct} distinct keys, but the GPU may hold {self.budget_rows} rows: "
                "raise that budget (gpu_rows) or use smaller batches"
            )
        self._oldest, found = search.plan["step"], batch.distinct - batch.missing
        self.hits += found
        self.misses += batch.missing
        listed = self.device.listed(search)
        if len(listed.keys):
            rows = self._fetched(listed, notes, cold)
            if batch.missing:
                lacking = len(self) + batch.missing - self.budget_rows
                if lacking > 0:
                    self._evict(lacking, found)
                self.device.insert(batch, self.device.work.upload("source", rows))
        return batch

    def look_ahead(self) -> None:
        """Queues the search for the batch that `prefetch` named, and evicts a piece if the room is small.

        The rows of the batch before must be there. Changes no result, and does not wait.
        """
        coming, self._coming = self._coming, None
        search = None if coming is None else self._search(coming, [table.tracks for table in self._hosts])
        lacking = self.spare_rows - (self.budget_rows - len(self))
        if lacking > 0 and all(leaving.certain for leaving in self._leaving):
            self._evict(min(lacking, PIECE_ROWS))
        if search is not None:
            mark, leaving = self.device.work.mark(), tuple(self._leaving)
            self._ahead = Ahead(search, self._reader.submit(self._read_ahead, search, mark, leaving))

    def apply(self, batch: Batch, grads: int, cells: int) -> None:
        """Runs the optimiser step of a batch, at the host tables' rates; see DeviceTable.apply."""
        changes = sum(table.hyper_changes for table in self._hosts)
        if changes != self._rates:
            self._rates = changes
            for number, table in enumerate(self._hosts):
                self.device.set_hyper(number, table.hyper())
        self.device.apply(batch, grads, cells)

    def end_step(self) -> None:
        """Waits for the thread that reads ahead. The host tables are the caller's until the next forward."""
        with self.lock:
            if self._ahead is not None:
                self._ahead.reading.result()
                self.device.work.passed()
                for leaving in self._leaving:
                    self._left(leaving)
                self._leaving.clear()

    def flush(self) -> None:
        """Writes the rows that changed since the last flush to their host tables. They stay on the device."""
        with self.lock:
            self._rest()
            self._write_back(*self.device.export_all(self._flushed, every=False))
            self._flushed = self.device.mark()

    def drop(self) -> None:
        """Drops the device's rows, changed or not: to be called when the host tables were filled again."""
        with self.lock:
            self.end_step()
            self._ahead = self._coming = None
            self._leaving.clear()
            self.device.clear()

    def erase(self, name: str, keys: npt.ArrayLike) -> int:
        """Erases keys of a table, on the device and the host; returns the number that existed."""
        with self.lock:
            self._rest()
            self.device.erase(keys, list(self.tables).index(name))
            return self.tables[name].erase(keys)

    def _rest(self) -> None:
        """Ends what is in flight: rows that leave reach their host tables, and nothing is known ahead."""
        self.end_step()
        if self._ahead is not None:  # its results would be lost by the next waits
            self._coming = self._coming or self._ahead.search.given
            self._ahead = None
        if self._leaving:
            self._settle()

    def _search(self, given: Occurrences, notes: Sequence[bool]) -> Search:
        """Queues the search for a batch's rows."""
        self._step += 1
        return self.device.search(given, step=self._step, listing=_listing(notes))

    def _settle(self) -> None:
        """Waits, and writes the rows that left to their host tables."""
        self.device.work.synchronize()
        for leaving in self._leaving:
            self._write_back(*leaving.changes())
            self._left(leaving)
        self._leaving.clear()

    def _left(self, leaving: Leaving) -> None:
        """Counts rows that left and are in their host tables."""
        count = self.device.left(leaving)
        self.evicted += count
        self.written_back += int(np.count_nonzero(leaving.changed[:count]))

    def _fetched(self, listed: Listed, notes: Sequence[bool], cold: Cold | None) -> Floats:
        """Rows float32[missing, stride] of the missing keys; inserts new keys, notes uses.

        Those that are not `cold` are read here.
        """
        keys, missing = listed.keys, listed.missing > 0
        if cold is None or len(cold.known) < len(keys):
            cold = Cold(
                np.zeros(len(keys), np.bool_), np.empty((len(keys), self.device.layout.stride), np.float32)
            )
        self.prefetched += int(np.count_nonzero(cold.known))
        for number, host in enumerate(self._hosts):
            mine = listed.tables == number
            wanted = mine & missing & ~cold.known
            if not notes[number]:
                mine = wanted
            if mine.any():
                numbers = host.find_or_insert(keys[mine])
                cold.rows[wanted] = host.read(numbers[wanted[mine]])[1]
        return cold.rows if missing.all() else cold.rows[missing]

    def _read_ahead(self, search: Search, mark: Mark, leaving: Sequence[Leaving]) -> Cold:
        """Writes evicted rows back, and reads rows that the device lacks and the host has; in a thread."""
        mark.wait()
        for each in leaving:
            self._write_back(*each.changes())
        listed = search.whole() or NOTHING_LISTED
        known = np.zeros(len(listed.keys), np.bool_)
        rows = np.empty((len(known), self.device.layout.stride), np.float32)
        for number, host in enumerate(self._hosts):
            mine = np.flatnonzero((listed.tables == number) & (listed.missing > 0))
            if len(mine):
                numbers = host.find(listed.keys[mine])
                there = numbers != MISSING_ROW
                known[mine[there]] = True
                rows[mine[there]] = host.read(numbers[there])[1]
        return Cold(known, rows)

    def _evict(self, limit: int, busy: int | None = None) -> None:
        """Queues an eviction; see DeviceTable.evict."""
        self._leaving.append(self.device.evict(limit, step=self._oldest, since=self._flushed, busy=busy))

    def _write_back(self, keys: Keys, of: Rows, rows: Floats) -> None:
        for number, host in enumerate(self._hosts):
            mine = of == number
            if mine.any():
                host.assign(keys[mine], rows[mine])


def _listing(notes: Sequence[bool]) -> Listing:
    """Keys that a search lists: tables that note uses hear of all."""
    return "distinct" if any(notes) else "missing"


@dataclass(frozen=True)
class _Given:
    """Offsets and keys of a batch on the device.

    Args:
        offsets: address of int32[cells + 1].
        keys: address of int64[nnz].
        nnz: number of keys.
        owners: of the memory, where it is the caller's.
    """

    offsets: int
    keys: int
    nnz: int
    owners: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class _Placed:
    """Batch on the device.

    Args:
        arrays: offsets and keys of the caller.
        given: the same on the device.
        occurrences: the keys, numbered.
        cells: address of uint32[nnz], the gradient of each key.
        plan: member of `Plan` → address.
        count: number of cells.
        results: block → (first float, shape).
    """

    arrays: tuple[Any, Any]
    given: _Given
    occurrences: Occurrences
    cells: int
    plan: dict[str, int]
    count: int
    results: list[tuple[int, tuple[int, int, int]]]


class CachedFields:
    """`FieldTables` over a cache: the same arguments, results and bits; arrays on the device.

    Offsets and keys are NumPy's, or both are tensors on the device (DLPack), which are taken as they are:
    their lengths are checked, their content is not.

    Several fronts may share a cache; a forward belongs to the backward after it, whichever front ran last.

    Args:
        cache: the cache.
        fields: as of FieldTables.
        blocks: as of FieldTables.
    """

    def __init__(
        self, cache: GpuCache, fields: Sequence[tuple[str, str]], blocks: Sequence[int] | None = None
    ) -> None:
        self.cache, self.fields = cache, tuple(fields)
        self.dim = cache.device.layout.dim
        self.host = FieldTables(cache.tables, fields, blocks)
        names = list(cache.tables)
        self._table_of = np.array([names.index(table) for _, table in fields], np.int64)
        self._blocks = np.array([0] * len(fields) if blocks is None else blocks, np.int64)
        self._last: tuple[Batch, _Placed] | None = None
        self._ahead: deque[_Placed] = deque(maxlen=SPACES - 1)

    def forward(self, offsets: Any, keys: Any, *rows: int) -> tuple[Any, ...]:
        """Sums of values float32[rows[k], F_k, D] of each block k, on the device; see FieldTables.forward.

        Raises:
            ConfigError: the batch does not fit the cache's budget.
        """
        with self.cache.lock:
            table, self._last = self.cache.device, None
            placed = self._placed(offsets, keys) or self._place(offsets, keys, rows)
            batch = self.cache.fetch(placed.occurrences)
            out = table.work.results.take(4 * placed.count * self.dim)
            members = {"rows": batch.plan["rows"], "id_of": batch.plan["id_of"], "out": out.address}
            table.launch({**placed.plan, **members}, ("pool_cells", placed.plan["n"] * table.parts))
            table.work.keep(placed.given.owners)  # no kernel of the backward reads them
            self._last = batch, placed
            self.cache.look_ahead()
            return tuple(table.device.array(out, shape, np.float32, 4 * at) for at, shape in placed.results)

    def backward(self, *grads: Any) -> int:
        """Runs an optimiser step on the rows of the last forward; see FieldTables.backward.

        Args:
            grads: float32 arrays of the forward's shapes, on the device (torch, CuPy) or the host.
        """
        with self.cache.lock:
            if self._last is None:
                raise RuntimeError("backward needs a forward before it")
            (batch, placed), self._last = self._last, None
            table = self.cache.device
            for grad, (_, shape) in zip(grads, placed.results, strict=True):
                _check(grad, "float32", shape)
            parts = [table.device.borrow(grad) for grad in grads]
            table.work.keep(parts)
            address = parts[0][0]
            if len(parts) > 1:
                address = table.work.memory("grads", 4 * placed.count * self.dim)
                for (source, _), (at, shape) in zip(parts, placed.results, strict=True):
                    table.device.copy(address + 4 * at, source, 4 * int(np.prod(shape)))
            self.cache.apply(batch, address, placed.cells)
            return batch.distinct

    def prefetch(self, offsets: Any, keys: Any, *rows: int) -> None:
        """Brings a batch to the device; the next forward, of the batch before it, looks for its rows.

        Changes no result, and does not wait. A forward of the same arrays uses what was copied here.
        """
        with self.cache.lock:
            placed = self._place(offsets, keys, rows)
            self._ahead.append(placed)
            self.cache.prefetch(placed.occurrences)

    def infer(
        self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int, missing: Missing = "initial"
    ) -> tuple[Floats, ...]:
        """Computes FieldTables.infer on the host, after a flush."""
        self.cache.flush()
        return self.host.infer(offsets, keys, *rows, missing=missing)

    def _placed(self, offsets: Any, keys: Any) -> _Placed | None:
        """Batch of these arrays, if a prefetch placed them."""
        for placed in self._ahead:
            if placed.arrays[0] is offsets and placed.arrays[1] is keys:
                self._ahead.remove(placed)
                return placed
        return None

    def _place(self, offsets: Any, keys: Any, rows: Sequence[int]) -> _Placed:
        """Brings a batch to the device, and computes the place of every key's result."""
        counts = np.array(rows, np.int64)
        blocks = int(self._blocks.max(initial=-1)) + 1
        if len(counts) < blocks:
            raise ValueError(f"fields are in {blocks} blocks, but rows are given for {len(counts)}")
        widths = np.bincount(self._blocks, minlength=len(counts))
        ends = np.cumsum(counts * widths)
        bases = ends - counts * widths
        cells = int(ends[-1]) if len(ends) else 0
        space = self.cache.space()
        if hasattr(keys, "__dlpack__") and not isinstance(keys, np.ndarray):
            given = self._borrowed(offsets, keys, cells)
        else:
            given = self._uploaded(offsets, keys, cells, space)
        places = np.zeros((len(self.fields), 4), np.int64)
        lengths = counts[self._blocks]
        places[:, 0] = np.cumsum(lengths) - lengths
        for block in range(len(counts)):
            mine = self._blocks == block
            places[mine, 1] = bases[block] + np.arange(widths[block])
        places[:, 2], places[:, 3] = widths[self._blocks], self._table_of
        table, nnz = self.cache.device, given.nnz
        work = table.work
        plan = {"n": cells, "fields": len(self.fields), "places": work.upload(space + "places", places)}
        plan["offsets"] = given.offsets
        plan["cell_places"] = work.memory(space + "cell_places", 4 * cells)
        of, at = work.memory(space + "tables", 4 * nnz), work.memory(space + "cells", 4 * nnz)
        table.launch({**plan, "tables_out": of, "cells_out": at}, ("place_cells", cells))
        shapes = [(int(n), int(width), self.dim) for n, width in zip(counts, widths, strict=True)]
        results = list(zip((bases * self.dim).tolist(), shapes, strict=True))
        occurrences = table.number(given.keys, nnz, tables=of, space=space)
        return _Placed((offsets, keys), given, occurrences, at, plan, cells, results)

    def _uploaded(self, offsets: npt.ArrayLike, keys: npt.ArrayLike, cells: int, space: str) -> _Given:
        offsets = contiguous(offsets, np.int32, (cells + 1,))
        keys = contiguous(keys, np.int64, (None,))
        if offsets[0] != 0 or offsets[-1] != len(keys) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets must start at 0, never fall and end at the number of keys")
        work = self.cache.device.work
        there = work.upload(space + "offsets", offsets), work.upload(space + "keys", keys)
        return _Given(*there, len(keys), ())

    def _borrowed(self, offsets: Any, keys: Any, cells: int) -> _Given:
        _check(offsets, "int32", (cells + 1,))
        _check(keys, "int64", (len(keys),))
        (starts, one), (at, other) = (self.cache.device.device.borrow(array) for array in (offsets, keys))
        self.cache.device.work.keep((one, other))
        return _Given(starts, at, len(keys), (one, other))


def _check(array: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless an array of NumPy, CuPy or torch has a type and a shape."""
    if tuple(array.shape) != shape or str(array.dtype).split(".")[-1] != dtype:
        raise ValueError(f"expected {dtype} of shape {shape}, not {array.dtype} of {tuple(array.shape)}")
