"""Byte budget of a versioned table: the rows that changed longest ago leave, as a function of the rows alone.

Rows are taken in by their time, of equal times by their key. When they are more than the budget, the keys
leave whose newest row is the oldest, of equal times those of the least key, until a sixteenth is free. A cut
tells up to which time and key rows have left, and from which time on: a look-up as of then or later does not
find them. So it does not matter how rows arrive, when a cut is computed, or by whom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from livectr.kernels.stream.clock import FIRST, LAST

I64 = npt.NDArray[np.int64]

KEY_BYTES = 64
"""Bytes that a key counts besides its row: index and newest version."""
SLICE = 4096
"""Rows that are taken in together."""


class Rows(NamedTuple):
    """n rows: number of the key, time in ms, and bytes, 0: the key was deleted; int64[n] each."""

    number: I64
    time: I64
    bytes: I64

    def take(self, rows: I64 | npt.NDArray[np.bool_] | slice) -> Rows:
        """Some of the rows."""
        return Rows(*(column[rows] for column in self))


NO_ROWS = Rows(*(np.empty(0, np.int64) for _ in range(3)))


class RowBudget:
    """Rows of a table up to a time, the clock, within a budget. Keys are dense numbers.

    Args:
        max_bytes: of all rows, with KEY_BYTES each. The newest row stays however large it is.
        max_age_ms: rows that are older count no longer.
    """

    def __init__(self, max_bytes: int, max_age_ms: int | None = None) -> None:
        self._max_bytes, self._max_age_ms = max_bytes, max_age_ms
        self.clock = FIRST
        self._cuts = np.empty(
            (3, 0), np.int64
        )  # time from which on it holds; time and key of the last that left
        self._later = NO_ROWS  # than the clock, sorted by time; behind them, as they came, those that are not
        self._fresh: list[Rows] = []
        self._time, self._bytes = np.empty(0, np.int64), np.empty(0, np.int64)  # of each key's newest row
        self._total = 0
        self._told = self._belated = False  # the first cut was told; rows came that had left already

    @property
    def size(self) -> int:
        """Bytes of the budget's own memory."""
        rows = sum(len(part.time) for part in (self._later, *self._fresh))
        return self._time.nbytes + self._bytes.nbytes + 24 * rows + self._cuts.nbytes

    def put(self, rows: Rows) -> None:
        """Add rows, of which some may be later than the clock."""
        if len(rows.number):
            self._fresh.append(rows)
            self._belated |= bool(self._cuts.shape[1]) and int(rows.time.min()) <= int(self._cuts[1, -1])

    def advance(self, time: int, keys: I64) -> None:
        """Take in the rows up to a time in ms.

        Args:
            time: event time in ms.
            keys: int64[≥ k], key of each number.
        """
        if time <= self.clock:
            return
        fresh = _joined(self._fresh)
        ripe = fresh.time <= time
        until = int(np.searchsorted(self._later.time, time, "right"))
        due = _joined([self._later.take(slice(0, until)), fresh.take(ripe)])
        self._later, self._fresh = self._later.take(slice(until, None)), [fresh.take(~ripe)]
        if len(self._fresh[0].time) > len(self._later.time) // 4 + SLICE:
            later = _joined([self._later, *self._fresh])
            self._later, self._fresh = later.take(np.argsort(later.time, kind="stable")), []
        self._grow(int(due.number.max(initial=-1)) + 1)
        due = due.take(np.lexsort((keys[due.number], due.time)))
        for start in range(0, len(due.time), SLICE):
            self._add(due.take(slice(start, start + SLICE)), keys)
        self.clock = time

    def gone(self, keys: I64, since: I64, times: I64 | int) -> npt.NDArray[np.bool_]:
        """Tell which rows have left as of some times up to the clock: bool[n].

        Args:
            keys: int64[n], key of each row.
            since: int64[n], time of each row.
            times: int64[n], or one for all.
        """
        if not self._cuts.shape[1]:
            return np.zeros(len(keys), np.bool_)
        cuts = np.concatenate([np.full((3, 1), FIRST), self._cuts], axis=1)
        _, until, key = cuts[:, np.searchsorted(self._cuts[0], times, "right")]
        return np.asarray((since < until) | ((since == until) & (keys <= key)))

    def forget(self, time: int) -> int | None:
        """Drop the cuts that no look-up as of a time or later needs.

        Returns:
            Time up to which rows may have left as of `time` that had not, or that came late; None: none.
        """
        first = int(np.searchsorted(self._cuts[0], time, "right")) - 1
        if first > 0 or (first == 0 and not self._told) or self._belated:
            self._cuts, self._told, self._belated = self._cuts[:, max(0, first) :], first >= 0, False
            return int(self._cuts[1, 0]) if first >= 0 else None
        return None

    def keep(self, old: I64) -> None:
        """Renumber the keys: key old[i] becomes i; `old` is sorted. Rows of other keys are dropped."""
        self._later, *self._fresh = (_numbered(rows, old) for rows in (self._later, *self._fresh))
        old = old[: np.searchsorted(old, len(self._time))]
        self._time, self._bytes = self._time[old], self._bytes[old]
        self._total = int(self._bytes.sum())

    @property
    def bounds(self) -> dict[str, Any]:
        """Clock and cuts, as values of JSON types."""
        return {"clock": self.clock, "cuts": self._cuts.tolist()}

    def restore(self, bounds: Mapping[str, Any]) -> None:
        """Load `bounds`; `fill` follows."""
        self.clock = bounds["clock"]
        self._cuts = np.array(bounds["cuts"], np.int64).reshape(3, -1)

    def fill(self, newest: Rows, waiting: Rows) -> None:
        """Replace all rows.

        Args:
            newest: of each key, its row as of the clock; those that have left are not among them.
            waiting: later ones.
        """
        self._time, self._bytes = np.empty(0, np.int64), np.empty(0, np.int64)
        self._grow(int(newest.number.max(initial=-1)) + 1)
        self._time[newest.number], self._bytes[newest.number] = newest.time, newest.bytes
        self._total, self._later, self._fresh = int(newest.bytes.sum()), NO_ROWS, [waiting]

    def _add(self, rows: Rows, keys: I64) -> None:
        """Take in rows that are sorted by time and key."""
        late = (rows.time < self._time[rows.number]) | self.gone(keys[rows.number], rows.time, LAST)
        rows = rows.take(~late)
        while len(rows.number):
            # bytes of the key's row before each
            before, order = self._bytes[rows.number], np.argsort(rows.number, kind="stable")
            again = np.flatnonzero(rows.number[order][1:] == rows.number[order][:-1]) + 1
            before[order[again]] = rows.bytes[order[again - 1]]
            totals = self._total + np.cumsum(rows.bytes - before)
            above = totals > self._max_bytes
            stop = int(above.argmax()) + 1 if above.any() else len(totals)
            last = stop - 1 - np.unique(rows.number[:stop][::-1], return_index=True)[1]
            taken = rows.take(last)
            self._time[taken.number], self._bytes[taken.number] = taken.time, taken.bytes
            self._total = int(totals[stop - 1])
            if above.any():
                self._cut(max(int(rows.time[stop - 1]), self.clock), keys)
            rows = rows.take(slice(stop, None))

    def _cut(self, at: int, keys: I64) -> None:
        """Let the oldest rows leave as of a time."""
        if self._max_age_ms is not None:
            self._leave(np.flatnonzero((self._bytes > 0) & (self._time <= at - self._max_age_ms)))
        excess = self._total - self._max_bytes // 16 * 15
        if self._total <= self._max_bytes:
            return
        live = np.flatnonzero(self._bytes)
        few = 1 + 2 * len(live) * excess // self._total  # the oldest are likely among so many
        if few < len(live):
            some = live[self._time[live] <= np.partition(self._time[live], few)[few]]
            live = some if self._bytes[some].sum() > excess else live
        live = live[np.lexsort((keys[live], self._time[live]))]
        count = int(np.searchsorted(np.cumsum(self._bytes[live]), excess)) + 1
        left = live[: min(count, max(1, int(np.count_nonzero(self._bytes))) - 1)]
        if not len(left):
            return
        cut = np.array([[at], [self._time[left[-1]]], [keys[left[-1]]]])
        self._cuts = np.concatenate([self._cuts[:, self._cuts[0] < at], cut], axis=1)
        self._leave(left)

    def _leave(self, numbers: I64) -> None:
        self._total -= int(self._bytes[numbers].sum())
        self._bytes[numbers] = 0

    def _grow(self, count: int) -> None:
        if (more := count - len(self._time)) > 0:
            more += count // 4
            self._time = np.concatenate([self._time, np.full(more, FIRST)])
            self._bytes = np.concatenate([self._bytes, np.zeros(more, np.int64)])


def _joined(parts: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate(columns) for columns in zip(NO_ROWS, *parts, strict=True)))


def _numbered(rows: Rows, old: I64) -> Rows:
    """Rows with the number i for old[i]."""
    rows = rows.take(np.isin(rows.number, old))
    return rows._replace(number=np.searchsorted(old, rows.number))
