"""A request's columns, look-up rows and histories, as the record batch that the feature plan reads.

The batch has the layout that the trainer gives the same extractor, so features cannot differ.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ingest import dtypes
from ingest.expr import RecentRef
from ingest.keys import key_of
from ingest.pipeline import Pipeline
from ingest.plan import FeaturePlan
from ingest.streams import Lookup
from protos.store import I64
from serving.facts import Facts, Wanted, fact_columns, recent_items
from serving.reader import Reader
from serving.request import Rows, repeat


class Assembler:
    """Makes record batches of the roots of `plan` out of requests."""

    def __init__(self, pipeline: Pipeline, plan: FeaturePlan, reader: Reader, facts: Facts) -> None:
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

    def batch(self, rows: Rows) -> tuple[pa.RecordBatch, set[str], bool]:
        """The record batch of n rows, the roots that are equal in every row, and whether Redis was asked."""
        arrays: dict[str, pa.Array] = {}
        constant: set[str] = set()
        for root in self._columns:
            arrays[root.name] = self._column(root.ref.column, rows, rows.size)
            if root.ref.column not in rows.candidates:
                constant.add(root.name)
        keys = [key_of(self._looked_up_by(lookup, rows)) for lookup, _ in self._lookups]
        found = self._facts.find(
            [Wanted(lookup.table, k) for (lookup, _), k in zip(self._lookups, keys, strict=True)],
            self._history_names(rows),
        )
        for (lookup, roots), facts in zip(self._lookups, found.rows, strict=True):
            shared = lookup.on not in rows.candidates
            for name, array in fact_columns(lookup.table, facts, roots).items():
                arrays[name] = repeat(array, rows.size) if shared else array
                if shared:
                    constant.add(name)
        for root, value in zip(self._histories, found.histories, strict=True):
            assert isinstance(root.ref, RecentRef)
            arrays[root.name] = _repeated_list(recent_items(root.ref, value, rows.now_ms), rows.size)
            constant.add(root.name)
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in self._names], names=self._names)
        return batch, constant, found.asked

    def _looked_up_by(self, lookup: Lookup, rows: Rows) -> pa.Array:
        return self._column(lookup.on, rows, rows.size if lookup.on in rows.candidates else 1)

    def _history_names(self, rows: Rows) -> list[bytes]:
        """Redis names of the user's histories, in the order of the roots."""
        if not self._histories:
            return []
        user = key_of(self._column(self._stream.key, rows, 1))
        return [name for root in self._histories for name in self._keyspace.histories(root.name, user)]

    def _column(self, name: str, rows: Rows, size: int) -> pa.Array:
        """A column of the impression stream as `size` values, all of the rows' or 1 of the context. Where
        the request leaves it out, the time is the request's, another one the stream's fill as in the clean
        view, else null."""
        found = rows.column(name) if size == rows.size else rows.context.get(name)
        if found is not None:
            return found
        kind = dtypes.arrow_type(self._stream.columns[name])
        if name == self._stream.time:
            return pa.array(np.full(size, rows.now_ms, np.int64), kind)
        if name in self._stream.fill:
            return pa.array([self._stream.fill[name]] * size, kind)
        return pa.nulls(size, kind)


def _repeated_list(values: I64, rows: int) -> pa.Array:
    """The same list i64[m] in every one of `rows` rows."""
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(values))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.tile(values, rows)))
