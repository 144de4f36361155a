"""Stage 2, enrich: look-up rows and behavior histories join a request's columns.

The record batches have the layout that the trainer gives the same extractor, so features cannot differ.
Columns that all candidates share hold 1 row.
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
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Table
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.protos.store import I64, decode_history, decode_lookup_rows
from livectr.serving.errors import foreign_values
from livectr.serving.request.parse import RequestColumns
from livectr.serving.version.reader import DownError, Reader

Row = list[object] | None
_Entry = tuple[float, bytes | None, Row]
"""Time of the read, value in Redis, decoded row: an equal value is not decoded again."""
_NEVER: _Entry = (float("-inf"), None, None)


@dataclass(frozen=True)
class EnrichedRequest:
    """Columns of a plan's roots, by their names.

    Args:
        shared: columns that all candidates share, 1 row.
        own: columns of each candidate, n rows.
        rows: n.
        complete: False when look-up rows or histories may be missing or old, because Redis was down or may
            have lost keys.
    """

    shared: pa.RecordBatch
    own: pa.RecordBatch
    rows: int
    complete: bool


class Enricher:
    """Computes the columns of a plan's roots from a request, look-up rows and histories."""

    def __init__(
        self, pipeline: Pipeline, plan: FeaturePlan, reader: Reader, lookup_rows: LookupRows
    ) -> None:
        self._keyspace = reader.keyspace
        self._lookup_rows = lookup_rows
        self._stream = pipeline.log.impressions
        self._names = [root.name for root in plan.roots]
        names = set(self._names)
        self._columns = [root for root in pipeline.request_roots if root.name in names]
        self._lookups = [
            (lookup, roots)
            for lookup in pipeline.log.lookups
            if (roots := [r for r in pipeline.lookup_roots[lookup.table.topic] if r.name in names])
        ]
        self._histories = [root for root in pipeline.history_roots if root.name in names]

    def enrich(self, request: RequestColumns) -> EnrichedRequest:
        """Join look-up rows and histories to a request's columns, with a single read of Redis.

        Raises:
            RefusedError: Redis refuses the read.
        """
        arrays: dict[str, pa.Array] = {}
        own: set[str] = set()
        for root in self._columns:
            column = root.ref.column
            arrays[root.name] = self._column(column, request)
            if column in request.candidates:
                own.add(root.name)
        queries = [LookupQuery(lk.table, key_of(self._column(lk.on, request))) for lk, _ in self._lookups]
        result = self._lookup_rows.find(queries, self._history_names(request))
        for (lookup, roots), rows in zip(self._lookups, result.rows, strict=True):
            arrays |= lookup_columns(lookup.table, rows, roots)
            if lookup.on in request.candidates:
                own |= {root.name for root in roots}
        for root, value in zip(self._histories, result.histories, strict=True):
            assert isinstance(root.ref, RecentRef)
            items = recent_items(root.ref, value, request.now_ms)
            arrays[root.name] = pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items)
        if request.size == 1:  # a single candidate shares with no other
            own = set(self._names)
        shared_names = [name for name in self._names if name not in own]
        own_names = [name for name in self._names if name in own]
        shared, each = (
            pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)
            for names in (shared_names, own_names)
        )
        return EnrichedRequest(shared, each, request.size, result.complete)

    def _history_names(self, request: RequestColumns) -> list[bytes]:
        """Redis keys of the user's histories, in the order of the roots."""
        if not self._histories:
            return []
        user = key_of(self._column(self._stream.key, request))
        return [name for root in self._histories for name in self._keyspace.histories(root.name, user)]

    def _column(self, name: str, request: RequestColumns) -> pa.Array:
        """Column of the impression stream: n values of the candidates, or 1 value of the context.

        A time column that the request leaves out is the request's time. Another column is the stream's fill
        value, as in training, else null.
        """
        values = request.candidates.get(name)
        if values is None:
            values = request.context.get(name)
        if values is not None:
            return values
        kind = dtypes.arrow_type(self._stream.columns[name])
        if name == self._stream.time:
            return pa.array([request.now_ms], kind)
        if name in self._stream.fill:
            return pa.array([self._stream.fill[name]], kind)
        return pa.nulls(1, kind)


@dataclass(frozen=True)
class LookupQuery:
    """Keys i64[n] of a table."""

    table: Table
    keys: I64


@dataclass(frozen=True)
class LookupResult:
    """Look-up rows and histories of a request.

    Args:
        rows: for each `LookupQuery`, a row (its columns in declared order) or None per key.
        histories: value or None per Redis key.
        complete: False when Redis was down or may have lost keys, so that a row may be missing or old.
    """

    rows: list[list[Row]]
    histories: list[bytes | None]
    complete: bool


class LookupRows:
    """Cache of look-up rows, with expired rows as the fallback while Redis is down or may have lost keys.

    Histories are not cached: each is a small value that nearly every request changes.

    Args:
        ttl_s: seconds for which a row is used before it is read again.
        max_rows: cached rows; when there are more, all are dropped.
    """

    def __init__(self, reader: Reader, *, ttl_s: float = 1.0, max_rows: int = 500_000) -> None:
        self._reader = reader
        self._ttl_s = ttl_s
        self._max_rows = max_rows
        self._cached: dict[str, dict[int, _Entry]] = {}
        self._lock = threading.Lock()

    def find(self, queries: Sequence[LookupQuery], histories: Sequence[bytes] = ()) -> LookupResult:
        """Read look-up rows, and histories by their Redis keys.

        Raises:
            RefusedError: Redis refuses the read, or holds a value that does not decode.
        """
        now = time.monotonic()
        keys = [query.keys.tolist() for query in queries]
        cached: list[dict[int, _Entry]] = []
        expired: list[list[int]] = []
        names: list[bytes] = []
        for query, own in zip(queries, keys, strict=True):
            table = self._cached.get(query.table.topic, {})
            entries = {key: table.get(key, _NEVER) for key in own}
            old = [key for key, entry in entries.items() if entry[0] < now - self._ttl_s]
            if old:
                names += self._reader.keyspace.lookup_rows(query.table.topic, np.array(old, np.int64))
            cached.append(entries)
            expired.append(old)
        history_values: list[bytes | None] = [None] * len(histories)
        complete = True
        if names or histories:
            try:
                values, complete = self._reader.values([*names, *histories])
            except DownError:
                complete = False
            else:
                history_values, rest = values[len(names) :], iter(values)
                for query, entries, old in zip(queries, cached, expired, strict=True):
                    read = {k: v for k, v in zip(old, rest, strict=False) if complete or v is not None}
                    with foreign_values():
                        fresh = _decode(now, entries, read)
                    self._keep(query.table.topic, fresh)
                    entries |= fresh
        rows = [[entries[key][2] for key in own] for entries, own in zip(cached, keys, strict=True)]
        return LookupResult(rows, history_values, complete)

    def _keep(self, topic: str, fresh: dict[int, _Entry]) -> None:
        with self._lock:
            if sum(map(len, self._cached.values())) + len(fresh) > self._max_rows:
                self._cached.clear()
            self._cached.setdefault(topic, {}).update(fresh)


def _decode(now: float, cached: Mapping[int, _Entry], read: Mapping[int, bytes | None]) -> dict[int, _Entry]:
    """Entries of values that were read; a value equal to the cached value is not decoded again."""
    new = {key: value for key, value in read.items() if value is not None and value != cached[key][1]}
    rows: dict[int, Row] = dict(zip(new, decode_lookup_rows(list(new.values())), strict=True))
    return {
        key: (now, value, rows[key] if key in rows else None if value is None else cached[key][2])
        for key, value in read.items()
    }


def lookup_columns(table: Table, rows: Sequence[Row], roots: Sequence[Expr]) -> dict[str, pa.Array]:
    """Convert n look-up rows into the roots' arrays of n values; a row that is None gives nulls."""
    nulls = [None] * len(table.columns)
    filled = [nulls if row is None else row for row in rows]
    columns = dict(zip(table.columns, zip(*filled, strict=False), strict=False))
    arrays = {}
    for root in roots:
        values: Sequence[object] = columns.get(root.ref.column, ())
        if root.dtype == "binary":
            values = [base64.b64decode(v) if isinstance(v, str) else v for v in values]
        arrays[root.name] = pa.array(values, dtypes.arrow_type(root.dtype))
    return arrays


def recent_items(ref: RecentRef, value: bytes | None, now_ms: int) -> I64:
    """Items of a history as of `now_ms`, newest last: the last n that are at most `within_ms` old."""
    with foreign_values():
        items, times = decode_history(value or b"")
    recent = (times <= now_ms) & (now_ms - times <= ref.within_ms)
    return items[recent][-ref.n :]
