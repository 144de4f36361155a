"""Dynamic tables in a GPU's memory: all tables of a front share an index, so a batch is one set of launches.

Rows, their numbers, initial values and optimiser steps are bit for bit those of
`kernels.table.table.DynamicTable`: both run the functions of RowLayout.source(). Launches for n occurrences
with U distinct keys: find 1; find_or_insert 9 and a wait, for the number of missing keys; update 4 more, and
a sort of n words where keys repeat. What the host has to know of the device is queued as downloads of a
guessed size: a caller of `number`, `search` and `evict` waits once for all of it. The structure and its
sources: gpu_table/bucket_index.cuh, gpu_table/device_rows.cuh, gpu_table/device_table.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from livectr.kernels.gpu_table.device_store import LEAST_LISTED, DeviceStore
from livectr.kernels.runtime.arrays import contiguous
from livectr.kernels.runtime.device_memory import GROWTH, blocks_of
from livectr.kernels.table.table import Floats, Keys, Missing, Rows
from livectr.system.errors import InternalError

CHUNK_ROWS = 1 << 20
"""Rows per chunk of an export, so that its device memory does not grow with the table."""
MOST_KEYS = 2**31 - 1
WINDOW = 4
"""Rows among which a row that leaves is chosen."""

Listing = Literal["missing", "distinct"]
"""Keys that a search lists: those without a row, or all."""


@dataclass(frozen=True)
class Occurrences:
    """Keys of a batch on the device, whose distinct keys are numbered.

    Args:
        n: number of occurrences.
        plan: member of `Plan` → address.
        space: prefix of the names of working memory.
    """

    n: int
    plan: dict[str, int]
    space: str


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


@dataclass(frozen=True)
class Listed:
    """Distinct keys of a batch, in the order of first occurrence.

    Args:
        keys: int64[m].
        tables: uint32[m], the table's index of each key.
        missing: uint32[m]; above 0 where the key has no row.
    """

    keys: Keys
    tables: Rows
    missing: npt.NDArray[np.uint32]

    def first(self, count: int) -> Listed:
        """Copy of the first `count` keys."""
        return Listed(self.keys[:count].copy(), self.tables[:count].copy(), self.missing[:count].copy())


NOTHING_LISTED = Listed(np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32))


@dataclass(frozen=True)
class Search:
    """Queued search for a batch's rows; its arrays are valid between the next wait and the one after.

    Args:
        given: the occurrences.
        plan: member of `Plan` → address.
        distinct: int64[1], number of distinct keys.
        absent: int64[1], number of these without a row.
        listing: keys that are listed.
        lists: the first of them.
    """

    given: Occurrences
    plan: dict[str, int]
    distinct: Keys
    absent: Keys
    listing: Listing | None
    lists: Listed

    @property
    def listed(self) -> int:
        """Number of keys that are listed, after the wait."""
        return (
            0
            if self.listing is None
            else int((self.absent if self.listing == "missing" else self.distinct)[0])
        )

    def whole(self) -> Listed | None:
        """Copy of all listed keys, after the wait; None where fewer were downloaded."""
        return None if self.listed > len(self.lists.keys) else self.lists.first(self.listed)

    def batch(self) -> Batch:
        """Result, after the wait."""
        return Batch(self.given.n, int(self.distinct[0]), int(self.absent[0]), self.plan)


@dataclass(frozen=True)
class Leaving:
    """Rows that leave the device; the arrays are valid between the next wait and the one after.

    Args:
        count: int64[1], number of rows that leave.
        keys: int64[limit], of which `count` are filled.
        tables: uint32[limit], the table's index of each key.
        changed: uint32[limit]; above 0 where a row has changed.
        rows: float32[limit, stride].
        certain: as many leave as may.
    """

    count: Keys
    keys: Keys
    tables: Rows
    changed: npt.NDArray[np.uint32]
    rows: Floats
    certain: bool

    def changes(self) -> tuple[Keys, Rows, Floats]:
        """Keys, table indices and rows that left and have changed, after the wait."""
        changed = self.changed > 0
        changed[int(self.count[0]) :] = False
        return self.keys[changed], self.tables[changed], self.rows[changed]


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
        (values,) = self.work.fetch((out, (n, self.layout.dim), np.float32))
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

    def number(self, keys: int, n: int, *, tables: int = 0, table: int = 0, space: str = "") -> Occurrences:
        """Numbers the distinct keys of n occurrences, valid until the next call for the same `space`.

        Args:
            keys: address of int64[n].
            n: number of occurrences.
            tables: address of uint32[n], the table of each occurrence; 0: all are of `table`.
            table: index of the table.
            space: prefix of the names of working memory.
        """
        work, slots = self.work, 1 << max(n * 2 - 1, 1).bit_length()
        if n > MOST_KEYS:
            raise ValueError(f"a batch may have {MOST_KEYS} keys, not {n}; use smaller batches")
        plan = {"n": n, "blocks": blocks_of(n), "keys": keys, "tables": tables, "table": table}
        plan["scratch"], plan["scratch_mask"] = work.memory("scratch", 4 * slots), slots - 1
        plan["slot_of"] = work.memory("slot_of", 4 * n)
        for name in ("leader", "id_of", "rows"):
            plan[name] = work.memory(space + name, 4 * n)
        for name in ("groups", "missing"):
            plan[name] = work.memory(space + name, 8 * (blocks_of(n) + 1))
        self.device.clear(plan["scratch"], 4 * slots)
        steps = ("group_claim", "group_count", "group_sums", "group_number", "group_spread")
        self.launch(plan, *((step, min(n, 1) if step.endswith("sums") else n) for step in steps))
        return Occurrences(n, plan, space)

    def search(self, given: Occurrences, *, step: int = 0, listing: Listing | None = None) -> Search:
        """Queues a search for the rows of distinct keys, and the download of its results.

        Args:
            given: the occurrences.
            step: stamp of the rows; 0: none.
            listing: keys to list. As many are downloaded as the last lists suggest; `listed` gets the others.
        """
        n, plan, work = given.n, {**given.plan, "step": step}, self.work
        room = 0 if listing is None else min(n, self._rooms[listing])
        if listing is not None:
            sizes = {"keys_out": 8, "tables_out": 4, "changed_out": 4}
            plan |= {name: work.memory(given.space + name, size * n) for name, size in sizes.items()}
        lists = [] if listing is None else [(f"list_{listing}", n)]
        self.launch(plan, ("find_groups", n), ("missing_sums", min(n, 1)), *lists)
        if n == 0:
            totals = np.zeros((2, 1), np.int64)
            return Search(given, plan, totals[0], totals[1], listing, self._download(plan, listing, 0))
        distinct, missing = (
            work.download(plan[name] + 8 * blocks_of(n), (1,), np.int64) for name in ("groups", "missing")
        )
        return Search(given, plan, distinct, missing, listing, self._download(plan, listing, room))

    def group(self, keys: int, n: int, *, table: int = 0) -> Batch:
        """Deduplicates the keys of n occurrences in a table and finds their rows. Waits."""
        search = self.search(self.number(keys, n, table=table))
        self.work.synchronize()
        return search.batch()

    def listed(self, search: Search) -> Listed:
        """Keys that a search lists, once it is done. Waits where the guess was too low."""
        count, listing = search.listed, search.listing
        if listing is not None:
            self._rooms[listing] = max(LEAST_LISTED, int(GROWTH * count))
        if (whole := search.whole()) is not None:
            return whole
        more = self._download(search.plan, listing, count)
        self.work.synchronize()
        return more.first(count)

    def _download(self, plan: dict[str, int], listing: Listing | None, room: int) -> Listed:
        """Queues the download of the first keys of a list."""
        if listing is None:
            return NOTHING_LISTED
        keys = self.work.download(plan["keys_out"], (room,), np.int64)
        tables = self.work.download(plan["tables_out"], (room,), np.uint32)
        if listing == "missing":
            return Listed(keys, tables, np.ones(room, np.uint32))
        return Listed(keys, tables, self.work.download(plan["changed_out"], (room,), np.uint32))

    def insert(self, batch: Batch, source: int = 0) -> None:
        """Inserts rows for the missing keys, in the order of first occurrence.

        Args:
            batch: a batch of `group`, or of a search since which no row was inserted.
            source: address of float32[missing, stride], which count as unchanged; 0: initial rows.
        """
        if not batch.missing:
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

    def evict(self, limit: int, *, step: int, since: int, busy: int | None = None) -> Leaving:
        """Queues the eviction of rows that were not used for long, and the download of these rows.

        The least recently used rows of a window leave; the next call takes the window that follows. `left`
        must be called once it is done, and before rows are inserted, erased or evicted again unless it is
        certain how many leave.

        Args:
            limit: most rows that leave.
            step: rows of this stamp or a later one stay.
            since: mark of the changes to report.
            busy: number of rows that stay by their stamp; then the window is so large that `limit` rows
                leave. There must be so many.
        """
        passed = WINDOW * limit if busy is None else limit + busy + self._free_count
        window, work, stride = min(passed, self._next_row), self.work, self.layout.stride
        limit = min(limit, window)
        self.reserve_free(limit)
        order, count = work.memory("order", 8 * window), work.memory("evicted", 8)
        plan = {"order": order, "groups": count, "hand": self._hand, "step": step, "since": since}
        sizes = {"keys_out": 8, "tables_out": 4, "changed_out": 4, "out": 4 * stride}
        plan |= {name: work.memory(f"evicted {name}", size * limit) for name, size in sizes.items()}
        self.device.clear(count, 8)
        self.launch({**plan, "n": window}, ("list_window", window))
        self.device.sort(order, window)
        self.launch({**plan, "n": limit}, ("evict_oldest", limit), ("read_evicted", limit * stride))
        self._hand = (self._hand + window) % self._next_row
        if busy is not None:
            self._free_count += limit
        return Leaving(
            work.download(count, (1,), np.int64),
            work.download(plan["keys_out"], (limit,), np.int64),
            work.download(plan["tables_out"], (limit,), np.uint32),
            work.download(plan["changed_out"], (limit,), np.uint32),
            work.download(plan["out"], (limit, stride), np.float32),
            busy is not None,
        )

    def left(self, leaving: Leaving) -> int:
        """Counts the rows of `evict` as free; returns their number."""
        count = int(leaving.count[0])
        if not leaving.certain:
            self._free_count += count
        elif count < len(leaving.keys):
            raise InternalError(f"{count} rows left a GPU, not {len(leaving.keys)}")
        return count

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
        keys, tables, changed, floats = work.fetch(
            (plan["keys_out"], (n,), np.int64),
            (plan["tables_out"], (n,), np.uint32),
            (plan["changed_out"], (n,), np.uint32),
            (plan["out"], (n, stride), np.float32),
        )
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
        (numbers,) = self.work.fetch((address, (n,), np.uint32))
        return numbers
