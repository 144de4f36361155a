"""Look-up rows in memory by column, so that a request reads its candidates' columns without a loop in Python.

Rows are only appended: a changed row gets another slot, and its key points there. When most slots are
garbage, the live rows move to a new table.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.tables import Table
from livectr.kernels.keys.keys import MISSING, KeyNumbers
from livectr.serving.request.lookup_columns import FIRST, I32, LARGEST_BYTES, Column, column_of, grown
from livectr.store.layout import I64, decode_lookup_rows

Row = list[object] | None
NEVER = float("-inf")
"""Instant of a row that must be read again."""


@dataclass(frozen=True)
class LookupRoot:
    """Root of a plan that is a column of a look-up table."""

    name: str
    column: str
    dtype: str

    @staticmethod
    def of(root: Expr) -> LookupRoot:
        """Root of an expression."""
        return LookupRoot(root.name, root.ref.column, root.dtype)


class LookupTable:
    """Rows of a look-up table that were read from Redis. Slot 0 is the row that was never read; thread-safe.

    Args:
        table: their table.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._columns: dict[str, Column] = {name: column_of(d) for name, d in table.columns.items()}
        self._numbers = KeyNumbers()
        self._keys: I64 = np.zeros(FIRST, np.int64)  # by number
        self._slot_of: I32 = np.zeros(FIRST, np.int32)  # by number
        self._values: list[bytes | None] = []
        self._read_at: npt.NDArray[np.float64] = np.zeros(FIRST)
        self._lock = threading.Lock()
        self._append([None], [None], NEVER)

    def __len__(self) -> int:
        """Number of slots, with garbage."""
        return len(self._values)

    @property
    def crowded(self) -> bool:
        """True if most slots are garbage."""
        return len(self._values) > 2 * len(self._numbers) + FIRST

    @property
    def full(self) -> bool:
        """True if a column of texts is near its limit."""
        return any(2 * column.nbytes > LARGEST_BYTES for column in self._columns.values())

    def find(self, keys: I64) -> tuple[I32, npt.NDArray[np.float64]]:
        """Slots i32[n] of keys i64[n], and the instants f64[n] of time.monotonic() when they were read."""
        with self._lock:
            numbers = self._numbers.find(np.ascontiguousarray(keys))
            if (known := numbers != MISSING).all():
                slots = self._slot_of[numbers]
            else:
                slots = np.zeros(len(keys), np.int32)
                slots[known] = self._slot_of[numbers[known]]
            return slots, self._read_at[slots]

    def columns(self, slots: I32, roots: Sequence[LookupRoot]) -> dict[str, pa.Array]:
        """Values of the roots by name; a row that is not there has nulls."""
        indices = pa.array(slots)
        return {root.name: self._columns[root.column].take(slots, indices, root.dtype) for root in roots}

    def put(self, keys: I64, values: Sequence[bytes | None], now: float) -> None:
        """Keep values of distinct keys i64[n] that were read at `now`.

        A value that equals the kept value is not decoded again.

        Raises:
            ValueError: a value does not decode; nothing is kept.
        """
        slots, _ = self.find(keys)
        new = [i for i, slot in enumerate(slots.tolist()) if not slot or self._values[slot] != values[i]]
        fresh = [values[i] for i in new]
        decoded = iter(decode_lookup_rows([value for value in fresh if value is not None]))
        rows = [None if value is None else next(decoded) for value in fresh]
        with self._lock:
            self._read_at[slots[slots > 0]] = now
            if new:
                first = len(self._values)
                self._append(rows, fresh, now)
                numbers = self._numbers.assign(np.ascontiguousarray(keys[new]))
                self._keys = grown(self._keys, len(self._numbers))
                self._slot_of = grown(self._slot_of, len(self._numbers))
                self._keys[numbers] = keys[new]
                self._slot_of[numbers] = np.arange(first, first + len(new))

    def expire(self, keys: I64 | None) -> None:
        """Let the rows of keys i64[n] be read again; None: all rows."""
        with self._lock:
            if keys is None:
                self._read_at[:] = NEVER
                return
            numbers = self._numbers.find(np.ascontiguousarray(keys))
            self._read_at[self._slot_of[numbers[numbers != MISSING]]] = NEVER

    def moved(self) -> LookupTable:
        """Copy of the live rows as they are now. Only their keys are copied under the lock."""
        copy = LookupTable(self._table)
        with self._lock:
            count = len(self._numbers)
            live, keys = self._slot_of[:count].copy(), self._keys[:count].copy()
            read_at = self._read_at[live]
        slots = np.concatenate([np.zeros(1, np.int32), live])  # slot 0 stays the row that was never read
        copy._columns = {name: column.moved(slots) for name, column in self._columns.items()}
        values = self._values
        copy._values += [values[slot] for slot in live.tolist()]
        copy._read_at = np.concatenate([copy._read_at[:1], read_at])
        copy._keys, copy._slot_of = keys, np.arange(1, count + 1, dtype=np.int32)
        copy._numbers.assign(keys)
        return copy

    def _append(self, rows: Sequence[Row], values: Sequence[bytes | None], now: float) -> None:
        nothing: list[object] = [None] * len(self._columns)
        filled = [nothing if row is None else [*row, *nothing] for row in rows]
        new = []
        for place, dtype in enumerate(self._table.columns.values()):
            column = [row[place] for row in filled]
            if dtype in dtypes.BYTES:
                column = [base64.b64decode(v) if isinstance(v, str) else v for v in column]
            try:
                new.append((pa.array(column, dtypes.arrow_type(dtype)), column))
            except (pa.ArrowException, OverflowError) as error:
                raise ValueError(f"a look-up row of {self._table.topic} has no {dtype}: {error}") from error
        for to, (array, column) in zip(self._columns.values(), new, strict=True):
            to.append(array, column)
        size = len(self._values) + len(rows)
        self._read_at = grown(self._read_at, size)
        self._read_at[len(self._values) : size] = now
        self._values += values
