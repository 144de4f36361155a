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
            column = rows.column(root.ref.column)
            if column is None:
                column = self._absent(root.ref.column, root.dtype, rows)
            arrays[root.name] = column
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
        column = lookup.on
        return rows.candidates[column] if column in rows.candidates else rows.context[column]

    def _history_names(self, rows: Rows) -> list[bytes]:
        """Redis names of the user's histories, in the order of the roots."""
        if not self._histories:
            return []
        user = key_of(rows.context[self._stream.key])
        return [name for root in self._histories for name in self._keyspace.histories(root.name, user)]

    def _absent(self, name: str, dtype: str, rows: Rows) -> pa.Array:
        """The time column defaults to the request's time; another one to null, whose fill is declared."""
        kind = dtypes.arrow_type(dtype)
        if name == self._stream.time:
            return pa.array(np.full(rows.size, rows.now_ms, np.int64), kind)
        return pa.nulls(rows.size, kind)


def _repeated_list(values: I64, rows: int) -> pa.Array:
    """The same list i64[m] in every one of `rows` rows."""
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(values))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.tile(values, rows)))
