"""Versions of keyed rows that end, by their age and by a byte budget; and what a checkpoint saves of them.

They are saved as changes: a base, and parts of the versions that came since, with the keys that left before
them. Versions that no look-up finds any more leave without a word: which these are follows from the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.kernels.stream.clock import FIRST
from livectr.kernels.stream.row_budget import RowBudget
from livectr.kernels.stream.versions import EMPTY, NO_ROW, Entries, RowVersions

I64 = npt.NDArray[np.int64]


class DroppedKeys:
    """Keys that left memory, with the place in the sequence of versions at which they left.

    Attributes:
        first: place from which on all of them are known.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, I64]] = []
        self.first = 0

    def add(self, place: int, keys: I64, *, most: int) -> None:
        """Note keys int64[m]; when they become more than `most`, all are given up."""
        self._parts.append((place, keys))
        if len(self) > most:
            self._parts, self.first = [], place + 1

    def since(self, place: int, share: tuple[int, int] = (0, 1)) -> I64:
        """Keys of a rank, of (rank, ranks), that left at a place or later: int64[m], rising."""
        keys = np.unique(np.concatenate([*(k for at, k in self._parts if at >= place), EMPTY.number]))
        return np.asarray(keys[keys % share[1] == share[0]])

    def __len__(self) -> int:
        return sum(len(keys) for _, keys in self._parts)


class TimedRows(RowVersions):
    """Row of each key at each time, as long as it counts.

    Args:
        max_age_ms: time after its own for which a row counts.
        max_bytes: of the rows; see `RowBudget`.

    Attributes:
        horizon: no look-up is as of an earlier time, in ms.
        dropped: keys that `keep` left out.
        expired, evicted: keys so far whose newest row ended by its age, and for lack of room.
    """

    def __init__(self, max_age_ms: int | None = None, max_bytes: int | None = None) -> None:
        super().__init__()
        self._max_age_ms = max_age_ms
        self.budget = None if max_bytes is None else RowBudget(max_bytes, max_age_ms)
        self.horizon = FIRST
        self.dropped = DroppedKeys()
        self.expired = self.evicted = 0
        self._expires_at = FIRST  # time as of which rows are next looked through for old ones

    def valid(self, numbers: I64, keys: I64, times: I64, key_of: I64) -> I64:
        """Row of each key at a time: int64[n], NO_ROW where none counts then.

        Args:
            numbers: int64[n].
            keys: int64[n].
            times: int64[n], event times in ms, up to which all rows are there.
            key_of: key of each number.
        """
        rows, since = self.at(numbers, times)
        if self._max_age_ms is not None:
            rows[since <= times - self._max_age_ms] = NO_ROW
        if self.budget is not None and len(keys):
            self.budget.advance(int(times.max()), key_of)
            rows[self.budget.gone(keys, since, times)] = NO_ROW
        return rows

    def end(self, reached_ms: int, key_of: I64) -> I64:
        """Take the rows from newest versions that no look-up as of the horizon or later finds.

        Old rows leave at multiples of a sixteenth of `max_age_ms`, the same in every process; all are looked
        for when rows have left for lack of room.

        Args:
            reached_ms: time up to which all rows are there.
            key_of: key of each number.

        Returns:
            Numbers of their keys.
        """
        ended = [np.empty(0, np.int64)]
        if self._max_age_ms is not None and self.horizon >= self._expires_at:
            period = max(1, self._max_age_ms // 16)
            now = self.horizon // period * period
            self._expires_at = now + period
            ended.append(self.rows_until(max(FIRST, now - self._max_age_ms)))
            self.delete(ended[-1])
            self.expired += len(ended[-1])
        if self.budget is not None:
            self.budget.advance(max(self.horizon, reached_ms), key_of)
            if (until := self.budget.forget(self.horizon)) is not None:
                some = self.rows_until(until)
                ended.append(some[self.budget.gone(key_of[some], self.newest(some), self.horizon)])
                self.delete(ended[-1])
                self.evicted += len(ended[-1])
        return np.concatenate(ended)

    def keep(self, old: I64) -> None:
        """See `RowVersions`."""
        super().keep(old)
        if self.budget is not None:
            self.budget.keep(old)

    @property
    def bytes(self) -> int:
        """Bytes of the index, without the rows."""
        return super().bytes + (0 if self.budget is None else self.budget.size)

    @property
    def bounds(self) -> dict[str, Any]:
        """Values of JSON types by which `counting` tells which saved rows count."""
        room = {} if self.budget is None else self.budget.bounds
        return {"horizon": self.horizon, "expired": self._old_ms, **room}

    def restore(self, bounds: Mapping[str, Any]) -> None:
        """Load `bounds`, if there are any, before the rows."""
        self.horizon = bounds.get("horizon", FIRST)
        if self.budget is not None and "clock" in bounds:
            self.budget.restore(bounds)

    def changed(self, since: int, key_of: I64, share: tuple[int, int]) -> Entries:
        """Versions to save that were put at a place or later.

        Args:
            since: place in the sequence of versions; 0: all.
            key_of: int64[≥ k], key of each number.
            share: (rank, ranks): the keys of the rank.
        """
        entries = self.entries(since)
        keys = key_of[entries.number]
        own = (keys % share[1] == share[0]) & (entries.time > self._old_ms)
        if self.budget is not None:
            own &= ~self.budget.gone(keys, entries.time, self.horizon)
        return entries.take(own)

    @property
    def _old_ms(self) -> int:
        """Time of the newest rows that are too old for a look-up as of the horizon."""
        return FIRST if self._max_age_ms is None else max(FIRST, self.horizon - self._max_age_ms)


def rows_that_count(entries: Entries, left: Sequence[I64], horizon: int) -> npt.NDArray[np.bool_]:
    """Mark the versions that a table would hold: bool[v].

    Args:
        entries: v versions in the order of the parts; `number` is the key itself, `place` the part's number.
        left: of each part, the keys that left before its versions.
        horizon: time in ms; versions that end before it are not found by any look-up.
    """
    count = np.ones(len(entries.number), np.bool_)
    for number, keys in enumerate(left):
        if len(keys):
            count[np.isin(entries.number, keys) & (entries.place < number)] = False
    held = np.flatnonzero(count)
    held = held[np.lexsort((held, entries.time[held], entries.number[held]))]
    key, time = entries.number[held], entries.time[held]
    ended = (key[1:] == key[:-1]) & ((time[1:] <= horizon) | (time[1:] == time[:-1]))
    count[held[np.append(ended, False)]] = False
    return count
