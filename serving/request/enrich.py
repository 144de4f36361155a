"""Stage 2, enrich: look-up rows and behavior histories join a request's columns.

The record batches have the layout that the trainer gives the same extractor, so features cannot differ.
Columns that all candidates share hold 1 row.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import RecentRef
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.serving.errors import foreign_values
from livectr.serving.request.lookup_rows import LookupQuery, LookupRows
from livectr.serving.request.lookup_table import LookupRoot
from livectr.serving.request.parse import RequestColumns
from livectr.serving.version.prefetch import PrefetchedRows, PrefetchKeys
from livectr.serving.version.reader import Reader
from livectr.store.layout import I64, decode_history

_MOST_PARTS = 256
"""Sets of candidate columns whose roots are remembered."""
_NOTHING = pa.RecordBatch.from_arrays([], names=[])


@dataclass(frozen=True)
class EnrichedRequest:
    """Columns of a plan's roots, by their names.

    Args:
        shared: columns that all candidates share, 1 row.
        own: columns of each candidate, n rows.
        rows: n.
        complete: False when look-up rows or histories may be missing or old, because Redis was down or may
            have lost keys.
        prefetched: embedding rows read in the same round trip; None: no prefetch, or Redis was down.
        read_at: instant of time.monotonic() at which the oldest live input, a look-up row or the histories,
            was read; None: the plan has none.
    """

    shared: pa.RecordBatch
    own: pa.RecordBatch
    rows: int
    complete: bool
    read_at: float | None = None
    prefetched: PrefetchedRows | None = None


@dataclass(frozen=True)
class _Lookup:
    """Look-up of a table by a column of the impression stream, and the roots among its columns."""

    table: Table
    on: str
    roots: tuple[LookupRoot, ...]


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
        columns = [root for root in pipeline.request_roots if root.name in names]
        self._columns = [(root.name, root.ref.column) for root in columns]
        self._lookups = [
            _Lookup(lookup.table, lookup.on, tuple(map(LookupRoot.of, roots)))
            for lookup in pipeline.log.lookups
            if (roots := [r for r in pipeline.lookup_roots[lookup.table.topic] if r.name in names])
        ]
        histories = [root for root in pipeline.history_roots if root.name in names]
        self._histories = [(r.name, r.ref) for r in histories if isinstance(r.ref, RecentRef)]
        # Columns of the candidates → names of the shared roots and of the others
        self._parts: dict[frozenset[str], tuple[list[str], list[str]]] = {}

    def enrich(self, request: RequestColumns, prefetch: PrefetchKeys | None = None) -> EnrichedRequest:
        """Join look-up rows and histories to a request's columns, with a single read of Redis.

        Args:
            request: columns of a parsed request.
            prefetch: embedding rows to read in the same round trip; None: no prefetch.

        Raises:
            RefusedError: Redis refuses the read.
        """
        arrays = {name: self._column(column, request) for name, column in self._columns}
        queries = [LookupQuery(lk.table, key_of(self._column(lk.on, request))) for lk in self._lookups]
        result = self._lookup_rows.find(queries, self._history_names(request), prefetch)
        for lookup, rows in zip(self._lookups, result.rows, strict=True):
            arrays |= rows.columns(lookup.roots)
        for (name, ref), value in zip(self._histories, result.histories, strict=True):
            items = recent_items(ref, value, request.now_ms)
            arrays[name] = pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items)
        shared, each = (
            pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names) if names else _NOTHING
            for names in self._split(request)
        )
        read_at = result.read_at if self._lookups or self._histories else None
        return EnrichedRequest(shared, each, request.size, result.complete, read_at, result.prefetched)

    def _split(self, request: RequestColumns) -> tuple[list[str], list[str]]:
        """Names of the roots that all candidates share, and of the others."""
        if request.size == 1:  # a single candidate shares with no other
            return [], self._names
        columns = frozenset(request.candidates)
        found = self._parts.get(columns)
        if found is None:
            own = {name for name, column in self._columns if column in columns}
            own |= {root.name for lookup in self._lookups if lookup.on in columns for root in lookup.roots}
            found = [n for n in self._names if n not in own], [n for n in self._names if n in own]
            if len(self._parts) >= _MOST_PARTS:  # clients choose the columns
                self._parts.clear()
            self._parts[columns] = found
        return found

    def _history_names(self, request: RequestColumns) -> list[bytes]:
        """Redis keys of the user's histories, in the order of the roots."""
        if not self._histories:
            return []
        user = key_of(self._column(self._stream.key, request))
        return [name for root, _ in self._histories for name in self._keyspace.histories(root, user)]

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


def recent_items(ref: RecentRef, value: bytes | None, now_ms: int) -> I64:
    """Items of a history as of `now_ms`, newest last: the last n that are at most `within_ms` old."""
    with foreign_values():
        items, times = decode_history(value or b"")
    recent = (times <= now_ms) & (now_ms - times <= ref.within_ms)
    return items[recent][-ref.n :]
