"""Versions of keyed rows by event time (Snodgrass 1987; Flink's versioned tables): which row was valid when.

Each key has a newest version in a dense array. Older versions lie in two levels sorted by (key, time), as in
an LSM tree: changes are sorted into the small level, which is merged into the large level when it has grown
to a quarter of it. Most look-ups end at the newest version.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

BEFORE_ALL = int(np.iinfo(np.int64).min)
"""Time of no version."""
NO_ROW = -1
"""Row of a deleted key, and of a key without a version at a time."""
SMALL = 4096
"""Versions of the small level that are never merged into the large level for their number alone."""


class Entries(NamedTuple):
    """v versions: number of the key, time in ms, place in the sequence of versions, row; int64[v] each."""

    number: I64
    time: I64
    place: I64
    row: I64

    def take(self, rows: I64 | npt.NDArray[np.bool_]) -> Entries:
        """Some of the versions."""
        return Entries(*(column[rows] for column in self))

    def in_order(self) -> Entries:
        """Sorted by (number, time); of equal ones only the last in the sequence stays."""
        order = np.lexsort((self.place, self.time, self.number))
        found = self.take(order)
        same = (found.number[1:] == found.number[:-1]) & (found.time[1:] == found.time[:-1])
        return found.take(np.append(~same, True)) if same.any() else found

    @staticmethod
    def joined(parts: list[Entries]) -> Entries:
        """Versions one behind the other."""
        return Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


EMPTY = Entries(*(np.empty(0, np.int64) for _ in range(4)))


class RowVersions:
    """Row of each key at each time. Keys are dense numbers; rows are numbers that the caller gives.

    A version is valid from its time on, until the time of the key's next version. Of versions with equal
    times the last that was put is valid.
    """

    def __init__(self) -> None:
        self._time = np.full(1, BEFORE_ALL, np.int64)  # of each key's newest version
        self._place = np.full(1, -1, np.int64)
        self._row = np.full(1, NO_ROW, np.int64)
        self._large, self._small = EMPTY, EMPTY
        self._changes: list[Entries] = []  # not sorted in
        self._next = 0
        self._kept = 0  # older versions after the last `forget`
        self._half = BEFORE_ALL  # time as of which half of them can be dropped

    @property
    def next(self) -> int:
        """Place of the next version."""
        return self._next

    @property
    def older(self) -> int:
        """Versions besides the newest of each key."""
        return sum(len(level.number) for level in (self._large, self._small, *self._changes))

    @property
    def bytes(self) -> int:
        """Bytes of the index, without the rows."""
        return 32 * self.older + 24 * len(self._time)

    def newest(self, numbers: I64) -> I64:
        """Time of each key's newest version, int64[n]; BEFORE_ALL for none."""
        return self._time.take(numbers, mode="clip")

    def put(self, numbers: I64, times: I64, rows: I64) -> None:
        """Add versions.

        Args:
            numbers: int64[n], numbers of the keys.
            times: int64[n], event times in ms.
            rows: int64[n]; NO_ROW deletes the key as of the time.
        """
        if not len(numbers):
            return
        self._grow(int(numbers.max()) + 1)
        places = self._next + np.arange(len(numbers))
        self._next += len(numbers)
        known = np.unique(numbers)
        known = known[self._place[known] >= 0]
        before = Entries(known, self._time[known], self._place[known], self._row[known])
        found = Entries.joined([before, Entries(numbers, times, places, rows)]).in_order()
        last = np.append(found.number[1:] != found.number[:-1], True)
        newest = found.take(last)
        self._time[newest.number] = newest.time
        self._place[newest.number] = newest.place
        self._row[newest.number] = newest.row
        if not last.all():
            self._changes.append(found.take(~last))

    def at(self, numbers: I64, times: I64) -> tuple[I64, I64]:
        """Version of each key at a time.

        Args:
            numbers: [n]; a number beyond all keys is an unknown key.
            times: int64[n], event times in ms.

        Returns:
            Its row int64[n], NO_ROW where the key was deleted or not there yet, and its time int64[n].
        """
        rows = self._row.take(numbers, mode="clip")
        since = self._time.take(numbers, mode="clip")
        older = np.flatnonzero(since > times)
        if len(older):
            self._sort()
            since[older], rows[older] = self._at(numbers[older].astype(np.int64), times[older])
        return rows, since

    def rows_until(self, time: int) -> I64:
        """Keys whose newest version has a row and a time that is not later: int64[k], rising."""
        return np.flatnonzero((self._row >= 0) & (self._time <= time))

    def delete(self, numbers: I64) -> None:
        """Take the row from the newest versions of keys int64[n], which stay as deletes."""
        self._row[numbers] = NO_ROW

    def known_after(self, time: int, count: int) -> npt.NDArray[np.bool_]:
        """bool[count]: which of the keys 0, 1, … count - 1 are still known after a time.

        These are keys with a version after the time, with a row, or with more than one version.
        """
        size = min(count, len(self._time) - 1)
        known = np.zeros(count, np.bool_)
        known[:size] = (self._time[:size] > time) & (self._place[:size] >= 0) | (self._row[:size] >= 0)
        for level in (self._large, self._small, *self._changes):
            known[level.number] = True
        return known

    def keep(self, old: I64) -> None:
        """Renumber the keys: key old[i] becomes i; `old` is sorted and has keys with older versions."""
        columns = self._time, self._place, self._row
        at = np.minimum(old, len(self._time) - 1)  # beyond it, keys have no version
        self._time, self._place, self._row = (
            np.append(column[at], fill)
            for column, fill in zip(columns, (BEFORE_ALL, -1, NO_ROW), strict=True)
        )

        def new(level: Entries) -> Entries:
            return level._replace(number=np.searchsorted(old, level.number))

        self._large, self._small, *self._changes = (
            new(level) for level in (self._large, self._small, *self._changes)
        )

    def forget(self, time: int, *, at_once: bool = False) -> bool:
        """Drop the versions that no look-up as of `time` or later finds.

        Args:
            time: in ms.
            at_once: else only when half of the versions can be dropped, or there are twice as many as stayed
                the last time.

        Returns:
            True when something was dropped.
        """
        before = self.older
        many = before > SMALL and (time >= self._half or before > 2 * self._kept)
        if not before or not (at_once or many):
            return False
        self._merge()
        entries = self._large
        same = np.append(entries.number[1:] == entries.number[:-1], False)
        until = np.where(same, np.append(entries.time[1:], 0), self._time[entries.number])
        self._large, left = entries.take(until > time), until[until > time]
        self._kept = len(left)
        self._half = int(np.partition(left, len(left) // 2)[len(left) // 2]) if len(left) else BEFORE_ALL
        return self._kept < before

    def entries(self, since: int = 0) -> Entries:
        """Versions that were put at place `since` or later, sorted by (number, time)."""
        known = np.flatnonzero(self._place >= since)
        parts = [Entries(known, self._time[known], self._place[known], self._row[known])]
        for level in (self._large, self._small, *self._changes):
            fresh = level.place >= since
            parts.append(level if fresh.all() else level.take(fresh))
        return Entries.joined(parts).in_order()

    def rows(self) -> I64:
        """Rows of all versions, sorted."""
        levels = self._large, self._small, *self._changes
        rows = np.unique(np.concatenate([self._row, *(level.row for level in levels)]))
        return rows[rows >= 0]

    def renumber(self, old: I64) -> None:
        """Renumber the rows: row old[i] becomes i; `old` is sorted and has all `rows`."""

        def new(rows: I64) -> I64:
            return np.where(rows < 0, rows, np.searchsorted(old, rows))

        self._row = new(self._row)
        self._large, self._small, *self._changes = (
            level._replace(row=new(level.row)) for level in (self._large, self._small, *self._changes)
        )

    def _at(self, numbers: I64, times: I64) -> tuple[I64, I64]:
        """Times and rows as `at`, among the older versions."""
        found = np.full((3, len(numbers)), [[BEFORE_ALL], [-1], [NO_ROW]], np.int64)  # time, place, row
        for level in (self._large, self._small):
            if not len(level.number):
                continue
            first = low = np.searchsorted(level.number, numbers, "left")
            high = np.searchsorted(level.number, numbers, "right")
            while (low < high).any():  # bisect for the first later version
                middle = np.minimum((low + high) // 2, len(level.time) - 1)
                right = (level.time[middle] <= times) & (low < high)
                low, high = np.where(right, middle + 1, low), np.where(right, high, np.minimum(high, middle))
            has = np.flatnonzero(low > first)
            at = low[has] - 1
            other = level.time[at], level.place[at]
            own = found[0, has], found[1, has]
            later = (other[0] > own[0]) | ((other[0] == own[0]) & (other[1] > own[1]))
            found[:, has[later]] = level.time[at[later]], level.place[at[later]], level.row[at[later]]
        return found[0], found[2]

    def _sort(self) -> None:
        """Sort changes in."""
        if self._changes:
            self._small = Entries.joined([self._small, *self._changes]).in_order()
            self._changes = []
        if len(self._small.number) > len(self._large.number) // 4 + SMALL:
            self._merge()

    def _merge(self) -> None:
        """Merge everything into the large level."""
        if self._changes or len(self._small.number):
            self._large = Entries.joined([self._large, self._small, *self._changes]).in_order()
            self._small, self._changes = EMPTY, []

    def _grow(self, keys: int) -> None:
        """Make room; the last element stands for unknown keys."""
        if keys >= len(self._time):
            more = max(keys + 1, 2 * len(self._time), 1024) - len(self._time)
            fills = (("_time", BEFORE_ALL), ("_place", -1), ("_row", NO_ROW))
            for name, fill in fills:
                setattr(self, name, np.concatenate([getattr(self, name), np.full(more, fill, np.int64)]))
