"""Look-up rows of users in memory: a request has one of them.

Most users are new to a server. So a row stays as Redis holds it, which is cheap to keep, and is decoded for
each request. `LookupTable` is for the rows of candidates: dear to keep, and cheap to read by the hundred.
"""

from __future__ import annotations

import base64
import functools
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.tables import Table
from livectr.serving.request.lookup_columns import FIRST, I32
from livectr.serving.request.lookup_table import NEVER, LookupRoot, Row
from livectr.store.layout import I64, decode_lookup_rows

_RECENT = 64
"""Rows whose columns are kept: a few for each request under way."""


class UserTable:
    """Rows of a look-up table, with the methods of `LookupTable`; thread-safe.

    Slot 0 is the row that was never read.

    Args:
        table: their table.
    """

    full = False

    def __init__(self, table: Table) -> None:
        self._table = table
        self._place = {name: place for place, name in enumerate(table.columns)}
        self._slot_of: dict[int, int] = {}
        self._values: list[bytes | None] = [None]
        self._read_at = [NEVER]
        self._lock = threading.Lock()
        # A request puts the row of a new user, and then reads it.
        self._arrays = functools.lru_cache(_RECENT)(self._decode)

    def __len__(self) -> int:
        """Number of slots, with garbage."""
        return len(self._values)

    @property
    def crowded(self) -> bool:
        """True if most slots are garbage."""
        return len(self._values) > 2 * len(self._slot_of) + FIRST

    def find(self, keys: I64) -> tuple[I32, npt.NDArray[np.float64]]:
        """As `LookupTable.find`."""
        with self._lock:
            slots = [self._slot_of.get(key, 0) for key in keys.tolist()]
            return np.array(slots, np.int32), np.array([self._read_at[slot] for slot in slots])

    def columns(self, slots: I32, roots: Sequence[LookupRoot]) -> dict[str, pa.Array]:
        """As `LookupTable.columns`."""
        values = [self._values[slot] for slot in slots.tolist()]
        if len(values) != 1:
            rows = self._decoded(values)
            return {root.name: self._column(rows, root.column, root.dtype) for root in roots}
        arrays = self._arrays(values[0])
        return {root.name: _as(arrays[root.column], root.dtype) for root in roots}

    def put(self, keys: I64, values: Sequence[bytes | None], now: float) -> None:
        """As `LookupTable.put`."""
        for value in values:  # raises ValueError for a row that does not decode
            self._arrays(value)
        with self._lock:
            for key, value in zip(keys.tolist(), values, strict=True):
                slot = self._slot_of.get(key, 0)
                if slot and self._values[slot] == value:
                    self._read_at[slot] = now
                    continue
                self._slot_of[key] = len(self._values)
                self._values.append(value)
                self._read_at.append(now)

    def expire(self, keys: I64 | None) -> None:
        """As `LookupTable.expire`."""
        with self._lock:
            if keys is None:
                self._read_at = [NEVER] * len(self._values)
                return
            for key in keys.tolist():
                self._read_at[self._slot_of.get(key, 0)] = NEVER

    def moved(self) -> UserTable:
        """Copy of the live rows."""
        copy = UserTable(self._table)
        with self._lock:
            copy._slot_of = {key: place for place, key in enumerate(self._slot_of, start=1)}
            copy._values += [self._values[slot] for slot in self._slot_of.values()]
            copy._read_at += [self._read_at[slot] for slot in self._slot_of.values()]
        return copy

    def _decode(self, value: bytes | None) -> dict[str, pa.Array]:
        """Columns of a row."""
        rows = self._decoded([value])
        return {name: self._column(rows, name, dtype) for name, dtype in self._table.columns.items()}

    def _decoded(self, values: Sequence[bytes | None]) -> list[Row]:
        rows = iter(decode_lookup_rows([value for value in values if value is not None]))
        return [None if value is None else next(rows) for value in values]

    def _column(self, rows: Sequence[Row], name: str, dtype: str) -> pa.Array:
        """Column of rows as an array of a type; a column that a row does not have is null."""
        place, kind = self._place[name], self._table.columns[name]
        values = [row[place] if row is not None and place < len(row) else None for row in rows]
        if kind in dtypes.BYTES:
            values = [base64.b64decode(v) if isinstance(v, str) else v for v in values]
        try:
            found = pa.array(values, dtypes.arrow_type(kind))
        except (pa.ArrowException, OverflowError) as error:
            raise ValueError(f"a look-up row of {self._table.topic} has no {kind}: {error}") from error
        return _as(found, dtype)


def _as(array: pa.Array, dtype: str) -> pa.Array:
    wanted = dtypes.arrow_type(dtype)
    return array if array.type == wanted else array.cast(wanted)
