"""Cache of look-up rows in front of Redis.

The trainer writes look-up rows with a version, and the version lists their keys. So a row stays until a
version that the server begins to serve names it (`changed`), and a request reads Redis for rows that are new
to the server alone. A time limit stands behind that, for rows that something else has written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.language.tables import Lookup, Table
from livectr.kernels.request.lookup import I32
from livectr.serving.errors import foreign_values
from livectr.serving.request.lookup_table import NEVER, LookupRoot, LookupTable
from livectr.serving.version.breaker import DownError
from livectr.serving.version.follower import VersionFollower
from livectr.serving.version.prefetch import PrefetchedRows, PrefetchKeys
from livectr.serving.version.reader import Reader
from livectr.store.layout import I64, LOOKUP


@dataclass(frozen=True)
class LookupQuery:
    """Keys i64[n] of a table."""

    table: Table
    keys: I64


@dataclass(frozen=True)
class FoundRows:
    """Rows of a request's keys.

    Args:
        table: rows of their table.
        slots: i32[n].
    """

    table: LookupTable
    slots: I32

    def columns(self, roots: Sequence[LookupRoot]) -> dict[str, pa.Array]:
        """Values of the roots by name; a row that is not there has nulls."""
        return self.table.columns(self.slots, roots)


@dataclass(frozen=True)
class LookupResult:
    """Look-up rows and histories of a request.

    Args:
        rows: rows of the keys of each `LookupQuery`.
        histories: value or None per Redis key.
        complete: False when Redis was down or may have lost keys, so that a row may be missing or old.
        prefetched: embedding rows; None: no prefetch, or Redis was down.
        read_at: instant of time.monotonic() at which the oldest of the rows was read.
    """

    rows: list[FoundRows]
    histories: list[bytes | None]
    complete: bool
    read_at: float
    prefetched: PrefetchedRows | None = None


@dataclass(frozen=True)
class _Read:
    """Read of Redis.

    Args:
        now: instant of time.monotonic() before it.
        swaps: calls of `changed` before it.
        complete: Redis is known to have lost no key.
    """

    now: float
    swaps: int
    complete: bool


class LookupRows:
    """Cache of look-up rows, with expired rows as the fallback while Redis is down or may have lost keys.

    Histories are not cached: each is a small value that nearly every request changes.

    Args:
        ttl_s: seconds after which a row is read again though no version has named it.
        max_rows: cached rows; when there are more, all are dropped.
    """

    def __init__(self, reader: Reader, *, ttl_s: float = 600.0, max_rows: int = 500_000) -> None:
        self._reader = reader
        self.ttl_s = ttl_s
        self._max_rows = max_rows
        self._tables: dict[str, LookupTable] = {}
        self._moved: list[Callable[[], None]] = []
        self._swaps = 0
        """Number of calls of `changed`: a row that was read before the last call may be old."""
        self._moving: set[str] = set()
        """Tables of which a request copies the live rows; other requests use them meanwhile."""
        self._lock = threading.Lock()

    def changed(self, tables: Mapping[str, I64] | None) -> None:
        """Let changed rows be read again: the server serves another version.

        Args:
            tables: changed keys i64[n] by table; look-up tables have the prefix LOOKUP. None: unknown, so
                all.
        """
        with self._lock:
            self._swaps += 1
            for topic, table in self._tables.items():
                if tables is None:
                    table.expire(None)
                elif LOOKUP + topic in tables:
                    table.expire(tables[LOOKUP + topic])

    def on_moved(self, moved: Callable[[], None]) -> None:
        """Call `moved` when a table is no longer one of `tables`."""
        self._moved.append(moved)

    def tables(self, lookups: Sequence[Lookup | LookupQuery]) -> list[LookupTable]:
        """Rows in memory of the tables of some look-ups."""
        found = []
        for lookup in lookups:
            table = self._tables.get(lookup.table.topic)
            found.append(self._new_table(lookup.table) if table is None else table)
        return found

    def find(
        self,
        queries: Sequence[LookupQuery],
        histories: Sequence[bytes] = (),
        prefetch: PrefetchKeys | None = None,
    ) -> LookupResult:
        """Read look-up rows, histories by their Redis keys, and prefetched embedding rows, in one round trip.

        Raises:
            RefusedError: Redis refuses the read, or holds a value that does not decode.
        """
        now, swaps = time.monotonic(), self._swaps
        found: list[FoundRows] = []
        expired: list[tuple[npt.NDArray[np.bool_], I64]] = []
        instants: list[npt.NDArray[np.float64]] = []
        names: list[bytes] = []
        for query in queries:
            (table,) = self.tables([query])
            slots, at = table.find(query.keys)
            stale = at < now - self.ttl_s
            old = query.keys[stale]
            if len(old):
                old = np.unique(old)
                names += self._reader.keyspace.lookup_rows(query.table.topic, old)
            found.append(FoundRows(table, slots))
            expired.append((stale, old))
            instants.append(at)
        history_values: list[bytes | None] = [None] * len(histories)
        complete, rows = True, None
        if names or histories or prefetch is not None:
            try:
                values, complete, rows = self._reader.read([*names, *histories], prefetch)
            except DownError:
                complete = False
            else:
                history_values, first = values[len(names) :], 0
                read_when = _Read(now, swaps, complete)
                for place, (query, (stale, old)) in enumerate(zip(queries, expired, strict=True)):
                    if len(old):
                        read = values[first : first + len(old)]
                        first += len(old)
                        kept = self._keep(query, found[place].table, old, read, read_when)
                        # The others stay as they were found: a slow read may have put older ones over them.
                        slots = np.where(stale, kept.slots, found[place].slots)
                        found[place] = FoundRows(kept.table, slots)
        # Expired rows were read just now; while Redis is away they are used as they are.
        since = now - self.ttl_s if complete else np.finfo(np.float64).min
        read_at = min((_oldest(at, since, now) for at in instants), default=now)
        return LookupResult(found, history_values, complete, read_at, rows)

    def _new_table(self, table: Table) -> LookupTable:
        new = LookupTable(table)
        with self._lock:
            return self._tables.setdefault(table.topic, new)

    def _keep(
        self,
        query: LookupQuery,
        table: LookupTable,
        keys: I64,
        values: Sequence[bytes | None],
        when: _Read,
    ) -> FoundRows:
        """Keep values that were read; a missing value may be a lost value, unless the read is complete.

        Returns:
            The rows of the query.
        """
        if not when.complete:
            there = [place for place, value in enumerate(values) if value is not None]
            keys, values = keys[there], [values[place] for place in there]
        # With the lock of `changed`: a value that was read before a swap is never seen as a new one, and does
        # not replace one that another request has read since.
        with foreign_values(), self._lock:
            places = np.flatnonzero(table.find(keys)[1] < when.now)
            values = [values[place] for place in places.tolist()]
            table.put(keys[places], values, when.now if when.swaps == self._swaps else NEVER)
            found = FoundRows(table, table.find(query.keys)[0])
        topic, dropped = query.table.topic, False
        with self._lock:  # the request continues with its table, which is garbage after it
            if sum(map(len, self._tables.values())) > self._max_rows + len(self._tables) or table.full:
                self._tables.clear()
                dropped = True
            move = table.crowded and self._tables.get(topic) is table and topic not in self._moving
            if move:
                self._moving.add(topic)
        if move:  # without the lock: the copy of a large table takes a second
            try:
                swaps, moved = self._swaps, table.moved()
                with self._lock:
                    if swaps != self._swaps:  # of the copy it is unknown which rows had changed
                        moved.expire(None)
                    if self._tables.get(topic) is table:
                        self._tables[topic] = moved
                        dropped = True
            finally:
                self._moving.discard(topic)
        if dropped:
            for listener in self._moved:
                listener()
        return found


def followed_rows(follower: VersionFollower, ttl_s: float) -> LookupRows:
    """Cache whose rows are as of the version that a follower serves."""
    rows = LookupRows(follower.reader, ttl_s=ttl_s)
    follower.on_change(rows.changed)
    return rows


def _oldest(read_at: npt.NDArray[np.float64], since: float, now: float) -> float:
    """The first of instants f64[n] that are not before `since`; -inf is that of a row that was never read."""
    oldest = read_at.min(initial=now)
    return float(oldest if oldest >= since else read_at[read_at >= since].min(initial=now))
