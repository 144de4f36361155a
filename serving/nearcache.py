"""The near-cache: embedding rows of the served version, held in the server's memory.

Rows live in the same hash table that trains them, with a layout that keeps the values and no optimiser state;
so a row that nobody has stored yet gets the very initial value that the trainer would give it. Such a row is
cached too (a negative entry): it is a row like any other, and a version that lists its key as changed
replaces it.

Bound: when `max_rows` are held, a random half of every table goes. A row that is in use comes back with the
next request for the price of one MGET; nothing is recorded on the path of a hit.

One mutex guards the tables: their find and infer take a fraction of a millisecond and use no Python.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from kernels.layout import RowLayout
from kernels.table import DynamicTable, FieldTables

from serving import metrics

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]

_MISSING = np.uint32(0xFFFFFFFF)


class NearCache:
    """Rows of several tables, at one version.

    layout: the row's values, stateless (its stride is D). seed: the trainer's. max_rows: over all tables.
    """

    def __init__(self, tables: Sequence[str], layout: RowLayout, *, seed: int, max_rows: int) -> None:
        if layout.stride != layout.dim:
            raise ValueError("the near-cache holds values only: its layout must have no optimiser state")
        self.tables = {name: DynamicTable(layout, name=name, seed=seed) for name in tables}
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._fronts: dict[tuple[tuple[str, str], ...], FieldTables] = {}
        self._random = np.random.default_rng(0)

    def __len__(self) -> int:
        return sum(len(table) for table in self.tables.values())

    def infer(
        self,
        fields: tuple[tuple[str, str], ...],
        offsets: I32,
        keys: I64,
        batch: int,
        found: Mapping[str, tuple[I64, F32]],
    ) -> tuple[F32 | None, dict[str, I64]]:
        """Pooled vectors f32[B, F, D] of `fields` (name, table), or None and the keys that are not held.

        offsets i32[F·B+1], keys i64[nnz]: field-major, as `Features` has them. `found`: rows to add first,
        per table (keys i64[m], rows f32[m, D]); they take part in this very call, whatever else is evicted.
        """
        with self._lock:
            if found:
                self._make_room(sum(len(k) for k, _ in found.values()))
                for table, (new, rows) in found.items():
                    self.tables[table].assign(new, rows)
            missing = self._missing(fields, offsets, keys, batch)
            metrics.NEARCACHE_ROWS.set(len(self))
            if missing:
                return None, missing
            front = self._fronts.get(fields)
            if front is None:
                front = self._fronts[fields] = FieldTables(self.tables, fields)
            return front.infer(offsets, keys, batch), {}

    def initial(self, table: str, keys: I64) -> F32:
        """The values f32[n, D] of rows that are not stored anywhere. The keys must not be held."""
        with self._lock:
            return self.tables[table].lookup(keys, missing="initial")

    def held(self, table: str, keys: I64) -> I64:
        """Those of keys i64[n] that are held."""
        with self._lock:
            return keys[self.tables[table].find(keys) != _MISSING]

    def assign(self, table: str, keys: I64, rows: F32) -> None:
        """Replaces or adds rows f32[n, D]."""
        with self._lock:
            self.tables[table].assign(keys, rows)

    def erase(self, table: str, keys: I64) -> None:
        """Drops rows."""
        with self._lock:
            self.tables[table].erase(keys)

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            for table in self.tables.values():
                table.clear()

    def _missing(
        self, fields: tuple[tuple[str, str], ...], offsets: I32, keys: I64, batch: int
    ) -> dict[str, I64]:
        ends = offsets[::batch] if batch else np.zeros(len(fields) + 1, np.int32)
        missing: dict[str, list[I64]] = {}
        for index, (_, table) in enumerate(fields):
            wanted = keys[ends[index] : ends[index + 1]]
            absent = wanted[self.tables[table].find(wanted) == _MISSING]
            if len(absent):
                missing.setdefault(table, []).append(absent)
        unique = {table: np.unique(np.concatenate(parts)) for table, parts in missing.items()}
        absent_rows = sum(len(k) for k in unique.values())
        metrics.NEARCACHE_HITS.inc(len(keys) - absent_rows)
        metrics.NEARCACHE_MISSES.inc(absent_rows)
        return unique

    def _make_room(self, coming: int) -> None:
        if len(self) + coming <= self._max_rows:
            return
        for table in self.tables.values():
            held, _ = table.export()
            table.erase(held[self._random.random(len(held)) < 0.5])
