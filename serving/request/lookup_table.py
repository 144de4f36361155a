"""Look-up rows in memory by column, so that a request reads its columns without a loop in Python.

A changed row gets another slot (`kernels.request.lookup`). When most slots are garbage, the live rows move to
a new table.
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
from livectr.kernels.request.lookup import I32, StoredRows
from livectr.store.layout import I64, decode_lookup_rows

Row = list[object] | None
NEVER = float("-inf")
"""Instant of a row that must be read again."""
_SPARE = 1024
"""Slots of garbage that are not worth a move."""
_MOST_EXTENT = 1 << 29
"""Bytes of texts, or items of lists, of a column at which its table is dropped; offsets are int32."""


@dataclass(frozen=True)
class LookupRoot:
    """Root of a plan that is a column of a look-up table."""

    name: str
    column: str

    @staticmethod
    def of(root: Expr) -> LookupRoot:
        """Root of an expression."""
        return LookupRoot(root.name, root.ref.column)


class LookupTable:
    """Rows of a look-up table that were read from Redis. Slot 0 is the row that was never read; thread-safe.

    Args:
        table: their table.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._types = [dtypes.arrow_type(dtype) for dtype in table.columns.values()]
        self._place = {name: place for place, name in enumerate(table.columns)}
        self.rows = StoredRows(self._types)
        self._values: list[bytes | None] = [None]  # by slot
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of slots, with garbage."""
        return self.rows.sizes[0]

    @property
    def crowded(self) -> bool:
        """True if most slots are garbage."""
        slots, keys, _ = self.rows.sizes
        return slots > 2 * keys + _SPARE

    @property
    def full(self) -> bool:
        """True if a column of texts is near its limit."""
        return self.rows.sizes[2] > _MOST_EXTENT

    def find(self, keys: I64) -> tuple[I32, npt.NDArray[np.float64]]:
        """Slots i32[n] of keys i64[n], and the instants f64[n] of time.monotonic() when they were read."""
        return self.rows.find(keys)

    def columns(self, slots: I32, roots: Sequence[LookupRoot]) -> dict[str, pa.Array]:
        """Values of the roots by name; a row that is not there has nulls."""
        return {root.name: self.rows.take(self._place[root.column], slots) for root in roots}

    def put(self, keys: I64, values: Sequence[bytes | None], now: float) -> None:
        """Keep values of distinct keys i64[n] that were read at `now`.

        A value that equals the kept value is not decoded again.

        Raises:
            ValueError: a value does not decode; nothing is kept.
        """
        slots, _ = self.find(keys)
        new = [i for i, slot in enumerate(slots.tolist()) if not slot or self._values[slot] != values[i]]
        fresh = [values[i] for i in new]
        columns = self._decoded(fresh)
        with self._lock:
            if len(new) < len(slots):
                self.rows.touch(np.delete(slots, new), now)  # the old slot of a changed row stays old
            if new:
                self._values += fresh  # first: a slot that is found has its value
                try:
                    self.rows.add(keys[new], columns, now)
                except MemoryError:
                    del self._values[-len(fresh) :]
                    raise

    def expire(self, keys: I64 | None) -> None:
        """Let the rows of keys i64[n] be read again; None: all rows."""
        self.rows.expire(keys)

    def moved(self) -> LookupTable:
        """Copy of the live rows as they are now. Only their keys are copied under a lock."""
        copy, values = LookupTable.__new__(LookupTable), self._values
        copy._table, copy._types, copy._place = self._table, self._types, self._place
        copy.rows, slots = self.rows.moved()
        copy._values, copy._lock = [values[slot] for slot in slots.tolist()], threading.Lock()
        return copy

    def _decoded(self, values: Sequence[bytes | None]) -> list[pa.Array]:
        """Columns of rows. Raises ValueError: a row does not decode."""
        decoded = iter(decode_lookup_rows([value for value in values if value is not None]))
        nothing: list[object] = [None] * len(self._types)
        rows = [nothing if value is None else [*next(decoded), *nothing] for value in values]
        columns = []
        for place, (dtype, kind) in enumerate(zip(self._table.columns.values(), self._types, strict=True)):
            column = [row[place] for row in rows]
            if dtype in dtypes.BYTES:
                column = [base64.b64decode(v) if isinstance(v, str) else v for v in column]
            try:
                columns.append(pa.array(column, kind))
            except (pa.ArrowException, OverflowError) as error:
                raise ValueError(f"a look-up row of {self._table.topic} has no {dtype}: {error}") from error
        return columns
