"""Write-back LRU cache of host tables' hot rows in GPU memory (tier GPU → DRAM).

The embedding front over it is here, too.

A row is trained on the device and stays there until the budget is full. Then the least recently used rows
that this batch does not need return to their host tables. Rows that a batch needs and the device lacks
come from the host table, which therefore knows every key and inserts them in its usual order. Between a
`flush` and the next `backward` the host tables have every bit that they would have without a device;
checkpoints, exports and publishing read them then. The place of a row never changes a result.

    forward ─► distinct keys ─► missing? ─► host table: find_or_insert, read ─► room ─► insert ─► pool
    backward ─► gradients in order ─► one optimiser step per row, on the device
    prefetch ─► rows of the next batch that the host has, while torch's stream computes this batch
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.gpu_table.device_store import Target
from livectr.kernels.gpu_table.device_table import Batch, DeviceTable
from livectr.kernels.runtime.arrays import contiguous
from livectr.kernels.runtime.device import CudaDevice
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.table import MISSING_ROW, DynamicTable, Floats, Keys, Missing, Rows
from livectr.system.errors import ConfigError

SPARE = 16
"""Inverse of the smallest part of the budget that is evicted at once: the choice reads all headers."""


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
        self._flushed = 0

    def __len__(self) -> int:
        """Number of rows on the device."""
        return len(self.device)

    def fetch(self, keys: int, n: int, tables: int) -> Batch:
        """Promotes the rows of a step's keys, so that all are on the device.

        Args:
            keys: address of int64[n].
            n: number of keys.
            tables: address of uint32[n], the table's index of each key.

        Raises:
            ConfigError: the distinct keys exceed the budget.
        """
        if not all(table.admits_all for table in self._hosts):
            raise ConfigError("a GPU cannot train tables with admission: switch admission or the GPU off")
        self._step += 1
        batch = self.device.group(keys, n, tables=tables, step=self._step)
        if batch.distinct > self.budget_rows:
            raise ConfigError(
                f"a batch has {batch.distinct} distinct keys, but the GPU may hold {self.budget_rows} rows: "
                "raise that budget (gpu_rows) or use smaller batches"
            )
        self.hits += batch.distinct - batch.missing
        self.misses += batch.missing
        notes = [table.tracks for table in self._hosts]  # a table may start to track later
        if any(notes):
            wanted, table_of, missing = self.device.distinct(batch)
        elif batch.missing:
            wanted, table_of = self.device.missing(batch)
            missing = np.ones(batch.missing, bool)
        else:
            return batch
        rows = self._fetched(wanted, table_of, missing, notes)
        if batch.missing:
            self._make_room(batch.missing)
            self.device.insert(batch, self.device.work.upload("source", rows))
        return batch

    def apply(self, batch: Batch, grads: int, cells: int) -> None:
        """Runs the optimiser step of a batch, at the host tables' rates; see DeviceTable.apply."""
        changes = sum(table.rate_changes for table in self._hosts)
        if changes != self._rates:
            self._rates = changes
            for number, table in enumerate(self._hosts):
                self.device.set_hyper(number, table.hyper())
        self.device.apply(batch, grads, cells)

    def prefetch(self, keys: int, n: int, tables: int) -> None:
        """Promotes rows ahead of their step: rows that their host table has, as far as there is room."""
        batch = self.device.group(keys, n, tables=tables, step=self._step, space="next ")
        if not batch.missing:
            return
        missing, of = self.device.missing(batch)
        known = np.zeros(batch.missing, bool)
        for number, host in enumerate(self._hosts):
            known[of == number] = host.find(missing[of == number]) != MISSING_ROW
        (chosen,) = np.nonzero(known)
        # Rows of this step and rows that are already prefetched stay.
        chosen = chosen[: max(0, self.budget_rows - self.device.used_in(self._step))]
        if not len(chosen):
            return
        missing, of = missing[chosen], of[chosen]
        rows = np.empty((len(chosen), self.device.layout.stride), np.float32)
        for number, host in enumerate(self._hosts):
            mine = of == number
            rows[mine] = host.read(host.find(missing[mine]))[1]
        self._make_room(len(chosen))
        work = self.device.work
        at, of_at = work.upload("ahead keys", missing), work.upload("ahead tables", of)
        ahead = self.device.group(at, len(chosen), tables=of_at, step=self._step, space="next ")
        self.device.insert(ahead, work.upload("source", rows))
        self.prefetched += len(chosen)

    def flush(self) -> None:
        """Writes the rows that changed since the last flush to their host tables. They stay on the device."""
        with self.lock:
            self._write_back(*self.device.export_all(self._flushed, every=False))
            self._flushed = self.device.mark()

    def drop(self) -> None:
        """Drops the device's rows, changed or not: to be called when the host tables were filled again."""
        with self.lock:
            self._step += 1
            rows, count = self.device.idle(self._step)
            self.device.release(rows, count)

    def erase(self, name: str, keys: npt.ArrayLike) -> int:
        """Erases keys of a table, on the device and the host; returns the number that existed."""
        with self.lock:
            self.device.erase(keys, list(self.tables).index(name))
            return self.tables[name].erase(keys)

    def _fetched(self, keys: Keys, of: Rows, missing: npt.NDArray[np.bool_], notes: Sequence[bool]) -> Floats:
        """Reads rows float32[missing, stride] of the missing keys; inserts new keys, notes uses."""
        out = np.empty((len(keys), self.device.layout.stride), np.float32)
        for number, host in enumerate(self._hosts):
            mine = of == number if notes[number] else (of == number) & missing
            if mine.any():
                numbers = host.find_or_insert(keys[mine])
                wanted = missing[mine]
                out[np.flatnonzero(mine)[wanted]] = host.read(numbers[wanted])[1]
        return out[missing]

    def _make_room(self, more: int) -> None:
        over = len(self) + more - self.budget_rows
        if over <= 0:
            return
        rows, idle = self.device.idle(self._step)
        count = min(idle, max(over, self.budget_rows // SPARE))
        keys, of, changed, floats = self.device.read(rows, count, self._flushed)
        self._write_back(keys[changed], of[changed], floats[changed])
        self.device.release(rows, count)
        self.evicted += count
        self.written_back += int(changed.sum())

    def _write_back(self, keys: Keys, of: Rows, rows: Floats) -> None:
        for number, host in enumerate(self._hosts):
            mine = of == number
            if mine.any():
                host.assign(keys[mine], rows[mine])


@dataclass(frozen=True)
class _Placed:
    """Batch on the device.

    Args:
        keys: address of int64[nnz].
        tables: address of uint32[nnz], the table's index of each key.
        cells: address of uint32[nnz], the gradient of each key.
        plan: member of `Plan` → address.
        nnz: number of keys.
        count: number of cells.
        results: block → (first float, shape).
    """

    keys: int
    tables: int
    cells: int
    plan: dict[str, int]
    nnz: int
    count: int
    results: list[tuple[int, tuple[int, int, int]]]


class CachedFields:
    """`FieldTables` over a cache: the same arguments, results and bits; arrays on the device.

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

    def forward(self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int) -> tuple[Any, ...]:
        """Sums of values float32[rows[k], F_k, D] of each block k, on the device; see FieldTables.forward.

        Raises:
            ConfigError: the batch does not fit the cache's budget.
        """
        with self.cache.lock:
            table, self._last = self.cache.device, None
            placed = self._place(offsets, keys, rows, "")
            batch = self.cache.fetch(placed.keys, placed.nnz, placed.tables)
            out = table.device.memory(4 * placed.count * self.dim)
            plan = {
                **placed.plan,
                "rows": batch.plan["rows"],
                "id_of": batch.plan["id_of"],
                "out": out.address,
            }
            table.launch(plan, ("pool_cells", placed.plan["n"] * table.parts))
            table.work.synchronize()
            self._last = batch, placed
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
                if tuple(grad.shape) != shape or str(grad.dtype).split(".")[-1] != "float32":
                    raise ValueError(
                        f"expected float32 of shape {shape}, not {grad.dtype} of {tuple(grad.shape)}"
                    )
            parts = [table.device.borrow(grad) for grad in grads]
            table.work.keep(parts)
            address = parts[0][0]
            if len(parts) > 1:
                address = table.work.memory("grads", 4 * placed.count * self.dim)
                for (source, _), (at, shape) in zip(parts, placed.results, strict=True):
                    table.device.copy(address + 4 * at, source, 4 * int(np.prod(shape)))
            self.cache.apply(batch, address, placed.cells)
            return batch.distinct

    def prefetch(self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int) -> None:
        """Promotes rows of the next batch to the device. Changes no result; may run in another thread."""
        with self.cache.lock:
            placed = self._place(offsets, keys, rows, "next ")
            self.cache.prefetch(placed.keys, placed.nnz, placed.tables)

    def infer(
        self, offsets: npt.ArrayLike, keys: npt.ArrayLike, *rows: int, missing: Missing = "initial"
    ) -> tuple[Floats, ...]:
        """Computes FieldTables.infer on the host, after a flush."""
        self.cache.flush()
        return self.host.infer(offsets, keys, *rows, missing=missing)

    def _place(self, offsets: npt.ArrayLike, keys: npt.ArrayLike, rows: Sequence[int], space: str) -> _Placed:
        """Copies a batch to the device, and computes the place of every key's result."""
        counts = np.array(rows, np.int64)
        blocks = int(self._blocks.max(initial=-1)) + 1
        if len(counts) < blocks:
            raise ValueError(f"fields are in {blocks} blocks, but rows are given for {len(counts)}")
        widths = np.bincount(self._blocks, minlength=len(counts))
        ends = np.cumsum(counts * widths)
        bases = ends - counts * widths
        cells = int(ends[-1]) if len(ends) else 0
        offsets = contiguous(offsets, np.int32, (cells + 1,))
        keys = contiguous(keys, np.int64, (None,))
        if offsets[0] != 0 or offsets[-1] != len(keys) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets must start at 0, never fall and end at the number of keys")
        places = np.zeros((len(self.fields), 4), np.int64)
        lengths = counts[self._blocks]
        places[:, 0] = np.cumsum(lengths) - lengths
        for block in range(len(counts)):
            mine = self._blocks == block
            places[mine, 1] = bases[block] + np.arange(widths[block])
        places[:, 2], places[:, 3] = widths[self._blocks], self._table_of
        table, nnz = self.cache.device, len(keys)
        work = table.work
        plan = {"n": cells, "fields": len(self.fields), "places": work.upload(space + "places", places)}
        plan["offsets"] = work.upload(space + "offsets", offsets)
        plan["cell_places"] = work.memory(space + "cell_places", 4 * cells)
        of, at = work.memory(space + "tables", 4 * nnz), work.memory(space + "cells", 4 * nnz)
        table.launch({**plan, "tables_out": of, "cells_out": at}, ("place_cells", cells))
        shapes = [(int(n), int(width), self.dim) for n, width in zip(counts, widths, strict=True)]
        results = list(zip((bases * self.dim).tolist(), shapes, strict=True))
        return _Placed(work.upload(space + "keys", keys), of, at, plan, nnz, cells, results)
