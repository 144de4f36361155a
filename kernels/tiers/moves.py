"""Moves of rows between tables and a store below them: Python interface of `tiers/moves.hpp`.

One call serves all tables of a rank. S segments of a list belong to S distinct tables: segment s is
[bounds[s], bounds[s + 1]).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.native import checked, table_library
from livectr.kernels.table.table import DynamicTable

I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


class Moves:
    """Moves of rows of tables that have one layout and keep track of use, `track=True`.

    A packed row has `width` bytes: float32[stride], stamp and count. Moves are no changes of a table. No call
    may run beside another call on the same tables.

    Args:
        layout: of the tables.
    """

    def __init__(self, layout: RowLayout) -> None:
        self.width = 4 * layout.stride + 8
        self._library = table_library()

    def find(self, tables: Sequence[DynamicTable], bounds: I64, keys: I64) -> U32:
        """Row numbers uint32[n] of keys int64[n]; MISSING_ROW for a missing key."""
        rows = np.empty(len(keys), np.uint32)
        where = _segments(tables, bounds)
        checked(self._library.moves_find(*where.at, address(keys), address(rows)))
        return rows

    def promote(self, tables: Sequence[DynamicTable], bounds: I64, keys: I64, packed: Bytes) -> None:
        """Put packed rows uint8[n, width] of keys int64[n], none of which is there, into the tables."""
        keys = contiguous(keys, np.int64, (None,))
        packed = contiguous(packed, np.uint8, (len(keys), self.width))
        where = _segments(tables, bounds)
        checked(self._library.moves_promote(*where.at, address(keys), address(packed)))

    def coldest(
        self,
        tables: Sequence[DynamicTable],
        count: int,
        pinned: Sequence[tuple[Sequence[DynamicTable], I64, U32]],
    ) -> tuple[I64, U32]:
        """Choose the `count` least recently used rows of all tables, or all; equal stamps: the first rows.

        Args:
            tables: T tables.
            count: number of rows.
            pinned: lists (tables, bounds, row numbers) of rows that stay; MISSING_ROW is skipped.

        Returns:
            bounds int64[T + 1] and row numbers uint32[n], rising in a table.
        """
        bounds, rows = np.zeros(len(tables) + 1, np.int64), np.empty(count, np.uint32)
        with ExitStack() as hidden:
            for owners, ends, numbers in pinned:
                where, stamps = _segments(owners, ends), np.empty(len(numbers), np.uint32)
                given = *where.at, address(numbers), address(stamps)
                checked(self._library.moves_hide(*given))
                hidden.callback(self._show, where, numbers, stamps)
            every = _segments(tables, bounds)
            chosen = checked(
                self._library.moves_coldest(every.at[0], len(tables), count, address(bounds), address(rows))
            )
        return bounds, rows[:chosen]

    def evict(self, tables: Sequence[DynamicTable], bounds: I64, rows: U32) -> tuple[I64, U32, Bytes]:
        """Take row numbers uint32[n] out of the tables.

        Returns:
            keys int64[n], generations uint32[n] of their last changes (0: none since they were promoted), and
            packed rows uint8[n, width].
        """
        keys, generations = np.empty(len(rows), np.int64), np.empty(len(rows), np.uint32)
        packed = np.empty((len(rows), self.width), np.uint8)
        where = _segments(tables, bounds)
        made = address(keys), address(generations), address(packed)
        checked(self._library.moves_evict(*where.at, address(rows), *made))
        return keys, generations, packed

    def is_one_of(self, given: I64, asked: I64) -> Mask:
        """Membership bool[n]: asked[i] is one of `given`, int64[m]. O(n + m)."""
        member = np.empty(len(asked), np.bool_)
        checked(
            self._library.moves_is_one_of(
                address(given), len(given), address(asked), len(asked), address(member)
            )
        )
        return member

    def _show(self, where: _Segments, numbers: U32, stamps: U32) -> None:
        checked(self._library.moves_show(*where.at, address(numbers), address(stamps)))


class _Segments:
    """Arguments of a call: handles of tables, their number, bounds. It keeps the arrays alive."""

    def __init__(self, handles: npt.NDArray[np.uint64], bounds: I64) -> None:
        self.arrays = handles, bounds
        self.at = address(handles), len(handles), address(bounds)


def _segments(tables: Sequence[DynamicTable], bounds: I64) -> _Segments:
    bounds = contiguous(bounds, np.int64, (len(tables) + 1,))
    return _Segments(np.array([table.handle for table in tables], np.uint64), bounds)
