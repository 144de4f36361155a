"""Look-up rows and behavior histories of a request, from Redis in one question.

Look-up rows (users, ads) are kept for `fresh_s`; when Redis cannot be asked, or does not know them and is not
known to be whole, the rows that were kept longer still answer. A history is one small value per request and
always read.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr, RecentRef
from livectr.ingest.language.streams import Table
from livectr.protos.store import I64, decode_history, decode_lookup_rows
from livectr.serving.errors import foreign_values
from livectr.serving.version.reader import DownError, Reader

Row = list[object] | None
_Entry = tuple[float, bytes | None, Row]
"""When a row was read, its value in Redis, and the row: most values are the same when they are read again."""
_NEVER: _Entry = (float("-inf"), None, None)


@dataclass(frozen=True)
class LookupQuery:
    """Rows of `table` for keys i64[n]."""

    table: Table
    keys: I64


@dataclass(frozen=True)
class LookupResult:
    """Look-up rows and histories that Redis holds.

    rows: for each `LookupQuery`, a row (its columns in declared order) or None per key. histories: a value or
    None per name. asked: False when Redis could not be asked or is not known to be whole, so that something
    may be missing or old.
    """

    rows: list[list[Row]]
    histories: list[bytes | None]
    asked: bool


class LookupRows:
    """The latest look-up rows. fresh_s: how long a row is used before it is asked again.

    max_rows: when more are kept, all are dropped and asked again.
    """

    def __init__(self, reader: Reader, *, fresh_s: float = 1.0, max_rows: int = 500_000) -> None:
        self._reader = reader
        self._fresh_s = fresh_s
        self._max_rows = max_rows
        self._kept: dict[str, dict[int, _Entry]] = {}
        self._lock = threading.Lock()

    def find(self, wanted: Sequence[LookupQuery], histories: Sequence[bytes] = ()) -> LookupResult:
        """Look-up rows, and histories by their Redis names. Raises RefusedError."""
        now = time.monotonic()
        oldest = now - self._fresh_s
        keys = [w.keys.tolist() for w in wanted]
        held: list[dict[int, _Entry]] = []
        stale: list[list[int]] = []
        names: list[bytes] = []
        for w, own in zip(wanted, keys, strict=True):
            kept = self._kept.get(w.table.topic, {})
            entries = {key: kept.get(key, _NEVER) for key in own}
            old = [key for key, entry in entries.items() if entry[0] < oldest]
            names += self._reader.keyspace.lookup_rows(w.table.topic, np.array(old, np.int64)) if old else []
            held.append(entries)
            stale.append(old)
        found: list[bytes | None] = [None] * len(histories)
        asked = True
        if names or histories:
            try:
                values, asked = self._reader.values([*names, *histories])
            except DownError:
                asked = False
            else:
                found, read = values[len(names) :], iter(values)
                for w, entries, old in zip(wanted, held, stale, strict=True):
                    told = {k: v for k, v in zip(old, read, strict=False) if asked or v is not None}
                    with foreign_values():
                        fresh = _fresh(now, entries, told)
                    self._keep(w.table.topic, fresh)
                    entries |= fresh
        rows = [[entries[key][2] for key in own] for entries, own in zip(held, keys, strict=True)]
        return LookupResult(rows, found, asked)

    def _keep(self, topic: str, fresh: dict[int, _Entry]) -> None:
        with self._lock:
            if sum(map(len, self._kept.values())) + len(fresh) > self._max_rows:
                self._kept.clear()
            self._kept.setdefault(topic, {}).update(fresh)


def _fresh(now: float, held: Mapping[int, _Entry], read: Mapping[int, bytes | None]) -> dict[int, _Entry]:
    """Entries of values that were read; what has the value that is held is not decoded again."""
    new = {key: value for key, value in read.items() if value is not None and value != held[key][1]}
    rows: dict[int, Row] = dict(zip(new, decode_lookup_rows(list(new.values())), strict=True))
    return {
        key: (now, value, rows[key] if key in rows else None if value is None else held[key][2])
        for key, value in read.items()
    }


def lookup_columns(table: Table, rows: Sequence[Row], roots: Sequence[Expr]) -> dict[str, pa.Array]:
    """The roots of `table` as arrays of n values; a row that is None gives nulls."""
    nothing = [None] * len(table.columns)
    whole = [nothing if row is None else row for row in rows]
    columns = dict(zip(table.columns, zip(*whole, strict=False), strict=False))
    arrays = {}
    for root in roots:
        values: Sequence[object] = columns.get(root.ref.column, ())
        if root.dtype == "binary":
            values = [base64.b64decode(v) if isinstance(v, str) else v for v in values]
        arrays[root.name] = pa.array(values, dtypes.arrow_type(root.dtype))
    return arrays


def recent_items(ref: RecentRef, value: bytes | None, now_ms: int) -> I64:
    """Items of a history as of `now_ms`, newest last: the last n that are no older than `within_ms`."""
    with foreign_values():
        items, times = decode_history(value or b"")
    recent = (times <= now_ms) & (now_ms - times <= ref.within_ms)
    return items[recent][-ref.n :]
