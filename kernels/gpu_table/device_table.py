"""Dynamic tables in a GPU's memory: all tables of a front share an index, so a batch is one set of launches.

Rows, their numbers, initial values and optimiser steps are bit for bit those of
`kernels.table.table.DynamicTable`: both run the functions of RowLayout.source(). Launches for n occurrences
with U distinct keys: find 1; find_or_insert 9 and a wait, for the number of missing keys; update 4 more, and
a sort of n words where keys repeat. The structure and its sources: gpu_table/bucket_index.cuh,
gpu_table/device_rows.cuh, gpu_table/device_table.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.gpu_table.device_store import DeviceStore
from livectr.kernels.runtime.arrays import contiguous
from livectr.kernels.runtime.device_memory import blocks_of
from livectr.kernels.table.table import Floats, Keys, Missing, Rows

CHUNK_ROWS = 1 << 20
"""Rows per chunk of an export, so that its device memory does not grow with the table."""
MOST_KEYS = 2**31 - 1


@dataclass(frozen=True)
class Batch:
    """Distinct keys of a batch's occurrences.

    Args:
        n: number of occurrences.
        distinct: U, number of distinct keys.
        missing: number of distinct keys without a row.
        plan: member of `Plan` → address.
    """

    n: int
    distinct: int
    missing: int
    plan: dict[str, int]


class DeviceTable(DeviceStore):
    """Hash table (table, key) → row float32[stride] in a device's memory; any int64 is a key.

    It is not thread-safe.

    Arguments and results are NumPy arrays; `table` is the index of a name. Settings are those of
    `DeviceStore`.

    Raises:
        ConfigError: there is no GPU.
        MemoryError: its memory is full.
    """

    # Host arrays in and out

    def find(self, keys: npt.ArrayLike, table: int = 0) -> Rows:
        """Row numbers uint32[n] of keys int64[n]; MISSING_ROW for a missing key."""
        n, at = self._keys(keys)
        rows = self.work.memory("row_of", 4 * n)
        self.find_at(at, n, rows, table)
        return self._rows(rows, n)

    def find_or_insert(self, keys: npt.ArrayLike, table: int = 0) -> Rows:
        """Row numbers uint32[n]; a missing key gets its initial row. Row numbers are valid until erase."""
        n, at = self._keys(keys)
        rows = self.work.memory("row_of", 4 * n)
        self.find_or_insert_at(at, n, rows, table)
        return self._rows(rows, n)

    def lookup(self, keys: npt.ArrayLike, table: int = 0, *, missing: Missing = "initial") -> Floats:
        """Values float32[n, D]; nothing is stored for a missing key."""
        n, at = self._keys(keys)
        rows, out = self.work.memory("row_of", 4 * n), self.work.memory("out", 4 * n * self.layout.dim)
        self.lookup_at(at, n, rows, out, table, missing=missing)
        values = self.work.download(out, (n, self.layout.dim), np.float32)
        self.work.synchronize()
        return values

    def update(self, keys: npt.ArrayLike, grads: npt.ArrayLike, table: int = 0) -> int:
        """Runs an optimiser step; gradients of equal keys are summed, in order.

        Missing keys are inserted first.

        Args:
            keys: int64[n].
            grads: float32[n, D].
            table: index of the table.

        Returns:
            Number of distinct keys.
        """
        n, at = self._keys(keys)
        grads = contiguous(grads, np.float32, (n, self.layout.dim))
        batch = self.group(at, n, table=table)
        self.insert(batch)
        self.apply(batch, self.work.upload("grads", grads))
        self.work.synchronize()
        return batch.distinct

    def assign(self, keys: npt.ArrayLike, rows: npt.ArrayLike, table: int = 0) -> int:
        """Stores raw rows float32[n, stride]; of equal keys the last counts.

        Returns:
            Number of distinct keys.
        """
        n, at = self._keys(keys)
        rows = contiguous(rows, np.float32, (n, self.layout.stride))
        batch = self.group(at, n, table=table)
        self.insert(batch)
        source = {"source": self.work.upload("source", rows)}
        self._in_order(batch, source, ("assign_rows", batch.distinct))
        self.work.synchronize()
        return batch.distinct

    def erase(self, keys: npt.ArrayLike, table: int = 0) -> int:
        """Erases keys; later keys reuse their rows. Returns the number of keys that existed."""
        n, at = self._keys(keys)
        batch = self.group(at, n, table=table)
        count = batch.distinct
        rows = self.work.memory("row_of", 4 * n)
        selected = self.select("found", count, {**batch.plan, "row_of": rows})
        self.release(rows, selected)
        self.work.synchronize()
        return selected

    def mark(self) -> int:
        """Closes the current generation of changes; `export(since=...)` takes the number returned."""
        self.generation += 1
        return self.generation - 1

    def export(self, table: int | None = 0, since: int = 0) -> tuple[Keys, Floats]:
        """Exports keys int64[m] and rows float32[m, stride], by row number.

        Args:
            table: index of the table; None: all tables.
            since: 0: every row. Else a mark: the rows inserted, updated or assigned after it. Erased keys are
                absent,
                and not announced.
        """
        keys, tables, rows = self.export_all(since)
        mine = slice(None) if table is None else tables == table
        return keys[mine], rows[mine]

    def export_all(self, since: int = 0, *, every: bool | None = None) -> tuple[Keys, Rows, Floats]:
        """Exports all tables as `export` does.

        Args:
            since: as of `export`.
            every: include rows that are unchanged since they came from a source; None: if since is 0.

        Returns:
            Keys int64[m], table indices uint32[m], rows float32[m, stride].
        """
        every = since == 0 if every is None else every
        if since < 0:
            raise ValueError(f"since must be 0 or a mark, not {since}")
        listed = self.work.memory("listed", 4 * self._next_row)
        plan = {"row_of": listed, "since": since, "all": int(every)}
        count = self.select("changed", self._next_row, plan)
        parts = [
            self.read(listed + 4 * begin, min(CHUNK_ROWS, count - begin))
            for begin in range(0, max(count, 1), CHUNK_ROWS)
        ]
        keys, tables, _, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
        return keys, tables, rows

    # Device memory in and out, queued

    def find_at(self, keys: int, n: int, rows: int, table: int = 0) -> None:
        """Queues `find` of int64[n] at an address, to uint32[n] at another."""
        self.launch({"n": n, "keys": keys, "row_of": rows, "table": table}, ("find_rows", n))

    def lookup_at(
        self, keys: int, n: int, rows: int, out: int, table: int = 0, *, missing: Missing = "initial"
    ) -> None:
        """Queues `lookup`; rows: address of working memory uint32[n]."""
        plan = {"n": n, "keys": keys, "row_of": rows, "table": table, "out": out}
        kernels = [("find_rows", n), ("read_values_of", n * self.parts)]
        self.launch(plan, *kernels, *([("initial_rows", n)] if missing == "initial" else []))

    def find_or_insert_at(self, keys: int, n: int, rows: int, table: int = 0) -> None:
        """Queues `find_or_insert`. Waits once, for the number of missing keys."""
        batch = self.group(keys, n, table=table)
        self.insert(batch)
        self.launch({**batch.plan, "row_of": rows}, ("spread_rows", n))

    def group(
        self, keys: int, n: int, *, tables: int = 0, table: int = 0, step: int = 0, space: str = ""
    ) -> Batch:
        """Deduplicates the keys of n occurrences and finds their rows. Waits.

        The batch is valid until the next batch of the same `space`.

        Args:
            keys: address of int64[n].
            n: number of occurrences.
            tables: address of uint32[n], the table of each occurrence; 0: all are of `table`.
            table: index of the table.
            step: stamp of the rows; 0: none.
            space: prefix of the names of working memory.
        """
        work, slots = self.work, 1 << max(n * 2 - 1, 1).bit_length()
        if n > MOST_KEYS:
            raise ValueError(f"a batch may have {MOST_KEYS} keys, not {n}; use smaller batches")
        plan = {"n": n, "blocks": blocks_of(n), "keys": keys, "tables": tables, "table": table, "step": step}
        plan["scratch"], plan["scratch_mask"] = work.memory(space + "scratch", 4 * slots), slots - 1
        for name in ("slot_of", "leader", "id_of", "rows"):
            plan[name] = work.memory(space + name, 4 * n)
        for name in ("groups", "missing"):
            plan[name] = work.memory(space + name, 8 * (blocks_of(n) + 1))
        self.device.clear(plan["scratch"], 4 * slots)
        steps = (
            "group_claim",
            "group_count",
            "group_sums",
            "group_number",
            "group_spread",
            "find_groups",
            "missing_sums",
        )
        self.launch(plan, *((step, min(n, 1) if step.endswith("sums") else n) for step in steps))
        if n == 0:
            return Batch(0, 0, 0, plan)
        totals = [
            work.download(plan[name] + 8 * blocks_of(n), (), np.int64) for name in ("groups", "missing")
        ]
        work.synchronize()
        return Batch(n, int(totals[0]), int(totals[1]), plan)

    def distinct(self, batch: Batch) -> tuple[Keys, Rows, npt.NDArray[np.bool_]]:
        """Distinct keys, their tables, and missing bool[U], in the order of first occurrence. Waits."""
        n, work = batch.distinct, self.work
        plan = {**batch.plan, "n": n, "keys_out": work.memory("keys_out", 8 * n)}
        plan |= {name: work.memory(name, 4 * n) for name in ("tables_out", "changed_out")}
        self.launch(plan, ("list_distinct", n))
        keys = work.download(plan["keys_out"], (n,), np.int64)
        tables = work.download(plan["tables_out"], (n,), np.uint32)
        missing = work.download(plan["changed_out"], (n,), np.uint32)
        work.synchronize()
        return keys, tables, missing > 0

    def missing(self, batch: Batch) -> tuple[Keys, Rows]:
        """Keys and tables of the missing keys, in the order of first occurrence. Waits."""
        n = batch.missing
        keys, tables = self.work.memory("keys_out", 8 * n), self.work.memory("tables_out", 4 * n)
        self.launch({**batch.plan, "keys_out": keys, "tables_out": tables}, ("list_missing", batch.n))
        pairs = self.work.download(keys, (n,), np.int64), self.work.download(tables, (n,), np.uint32)
        self.work.synchronize()
        return pairs

    def insert(self, batch: Batch, source: int = 0) -> None:
        """Inserts rows for the missing keys, in the order of first occurrence.

        Args:
            batch: a batch of `group`.
            source: address of float32[missing, stride], which count as unchanged; 0: initial rows.
        """
        if batch.missing == 0:
            return
        reused = min(batch.missing, self._free_count)
        self.reserve_rows(self._next_row + batch.missing - reused)
        self.reserve_slots(batch.missing)
        self.launch({**batch.plan, "source": source}, ("insert_missing", batch.n))
        self._free_count -= reused
        self._next_row += batch.missing - reused
        self._used += batch.missing

    def apply(self, batch: Batch, grads: int, cells: int = 0) -> None:
        """Runs an optimiser step of a batch without missing keys.

        Args:
            batch: a batch of `group`.
            grads: address of float32[·, D].
            cells: address of uint32[n], the gradient of each occurrence; 0: gradient i of occurrence i.
        """
        dim = self.layout.dim
        plan = {"grads": grads, "cells": cells, "sums": self.work.memory("sums", 4 * batch.distinct * dim)}
        kernels = (("sum_gradients", batch.distinct * dim), ("update_rows", batch.distinct))
        self._in_order(batch, plan, *kernels)

    def idle(self, step: int) -> tuple[int, int]:
        """Rows not used in a step, least recently used first: address of uint32[m], and m. Waits."""
        order = self.work.memory("order", 8 * self._next_row)
        plan = {"order": order, "step": step}
        count = self.select("idle", self._next_row, plan)
        self.device.sort(order, count)
        rows = self.work.memory("listed", 4 * count)
        self.launch({"n": count, "order": order, "row_of": rows}, ("take_idle", count))
        return rows, count

    def used_in(self, step: int) -> int:
        """Number of rows used in a step. Waits."""
        return len(self) - self.count("idle", self._next_row, {"step": step})

    def read(self, rows: int, n: int, since: int = 0) -> tuple[Keys, Rows, npt.NDArray[np.bool_], Floats]:
        """Reads rows uint32[n] at an address. Waits.

        Returns:
            Keys, table indices, changed after mark `since` bool[n], rows float32[n, stride].
        """
        work, stride = self.work, self.layout.stride
        plan = {"n": n, "row_of": rows, "since": since, "out": work.memory("out", 4 * n * stride)}
        plan |= {"keys_out": work.memory("keys_out", 8 * n), "tables_out": work.memory("tables_out", 4 * n)}
        plan["changed_out"] = work.memory("changed_out", 4 * n)
        self.launch(plan, ("read_headers", n), ("read_rows", n * stride))
        keys = work.download(plan["keys_out"], (n,), np.int64)
        tables = work.download(plan["tables_out"], (n,), np.uint32)
        changed = work.download(plan["changed_out"], (n,), np.uint32)
        floats = work.download(plan["out"], (n, stride), np.float32)
        work.synchronize()
        return keys, tables, changed > 0, floats

    # Helpers

    def _in_order(self, batch: Batch, plan: dict[str, int], *kernels: tuple[str, int]) -> None:
        """Launches kernels that read a batch's occurrences by distinct key."""
        order = self.work.memory("order", 8 * batch.n)
        starts = self.work.memory("starts", 4 * (batch.distinct + 1))
        whole = {**batch.plan, "distinct": batch.distinct, "order": order, "starts": starts, **plan}
        self.launch(whole, ("list_occurrences", batch.n))
        if batch.distinct < batch.n:  # else they are in order: keys are numbered by their first occurrence
            self.device.sort(order, batch.n)
        self.launch(whole, ("find_starts", batch.n), *kernels)

    def _keys(self, keys: npt.ArrayLike) -> tuple[int, int]:
        """Uploads keys; returns their number and their address."""
        array = contiguous(keys, np.int64, (None,))
        return len(array), self.work.upload("keys", array)

    def _rows(self, address: int, n: int) -> Rows:
        numbers = self.work.download(address, (n,), np.uint32)
        self.work.synchronize()
        return numbers
