"""A request's columns, look-up rows and histories, as the record batches that the feature plan reads.

They have the layout that the trainer gives the same extractor, so features cannot differ. What all candidates
share is there once.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import RecentRef
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Lookup
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.serving.request.lookup_rows import LookupQuery, LookupRows, lookup_columns, recent_items
from livectr.serving.request.parse import Rows
from livectr.serving.version.reader import Reader


@dataclass(frozen=True)
class Columns:
    """Columns of the roots, by their names.

    shared: what all candidates share, 1 row. own: what each has, n rows. rows: n.
    """

    shared: pa.RecordBatch
    own: pa.RecordBatch
    rows: int


class Assembler:
    """Makes record batches of the roots of `plan` out of requests."""

    def __init__(self, pipeline: Pipeline, plan: FeaturePlan, reader: Reader, facts: LookupRows) -> None:
        self._keyspace = reader.keyspace
        self._facts = facts
        self._stream = pipeline.log.impressions
        self._names = [root.name for root in plan.roots]
        wanted = set(self._names)
        self._columns = [root for root in pipeline.request_roots if root.name in wanted]
        self._lookups = [
            (lookup, roots)
            for lookup in pipeline.log.lookups
            if (roots := [r for r in pipeline.lookup_roots[lookup.table.topic] if r.name in wanted])
        ]
        self._histories = [root for root in pipeline.history_roots if root.name in wanted]

    def columns(self, rows: Rows) -> tuple[Columns, bool]:
        """The roots' columns, and whether Redis was asked."""
        arrays: dict[str, pa.Array] = {}
        own: set[str] = set()
        for root in self._columns:
            name = root.ref.column
            arrays[root.name] = self._column(name, rows)
            if name in rows.candidates:
                own.add(root.name)
        keys = [key_of(self._looked_up_by(lookup, rows)) for lookup, _ in self._lookups]
        found = self._facts.find(
            [LookupQuery(lookup.table, k) for (lookup, _), k in zip(self._lookups, keys, strict=True)],
            self._history_names(rows),
        )
        for (lookup, roots), facts in zip(self._lookups, found.rows, strict=True):
            arrays |= lookup_columns(lookup.table, facts, roots)
            if lookup.on in rows.candidates:
                own |= {root.name for root in roots}
        for root, value in zip(self._histories, found.histories, strict=True):
            assert isinstance(root.ref, RecentRef)
            items = recent_items(root.ref, value, rows.now_ms)
            arrays[root.name] = pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items)
        if rows.size == 1:  # nobody to share with
            own = set(self._names)
        parts = [[name for name in self._names if (name in own) is which] for which in (False, True)]
        shared, each = (pa.RecordBatch.from_arrays([arrays[n] for n in part], names=part) for part in parts)
        return Columns(shared, each, rows.size), found.asked

    def _looked_up_by(self, lookup: Lookup, rows: Rows) -> pa.Array:
        return self._column(lookup.on, rows)

    def _history_names(self, rows: Rows) -> list[bytes]:
        """Redis names of the user's histories, in the order of the roots."""
        if not self._histories:
            return []
        user = key_of(self._column(self._stream.key, rows))
        return [name for root in self._histories for name in self._keyspace.histories(root.name, user)]

    def _column(self, name: str, rows: Rows) -> pa.Array:
        """A column of the impression stream: n values of the candidates, or 1 of the context. Where the
        request leaves it out, the time is the request's, another one the stream's fill as in the clean view,
        else null."""
        found = rows.candidates.get(name)
        if found is None:
            found = rows.context.get(name)
        if found is not None:
            return found
        kind = dtypes.arrow_type(self._stream.columns[name])
        if name == self._stream.time:
            return pa.array([rows.now_ms], kind)
        if name in self._stream.fill:
            return pa.array([self._stream.fill[name]], kind)
        return pa.nulls(1, kind)
