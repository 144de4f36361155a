"""Batches of labelled examples, and the look-up join that completes their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest import metrics
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.join.payload import INSTANCE, ITEM, TIME, USER, lookup_column
from livectr.ingest.join.ready import Popped
from livectr.ingest.language import dtypes
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.clock import FIRST
from livectr.kernels.stream.join import FINAL_NEGATIVE

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Examples:
    """Batch of b labelled examples in training order.

    Args:
        columns: roots of the pipeline's plan by name, b rows. Columns of a look-up are null where its key is
            unknown, and may be dictionary-encoded.
        label: float32[b], 0 or 1; of finals see `ingest.join.label_join.Ready`.
        user: int64[b], key of the user.
        instance: int64[b], key of the label join.
        time_ms: int64[b], event time of the impression.
        item: int64[b], key of the item; 0 without an items table.
        order: int64[b], place in the global sequence.
        partition: int32[b]; equal orders are sorted by it.
        late: bool[b], the impression was an example before, with label 0; see `ingest.join.label_join.Ready`.
        words: int64[b], labels beside the click; see `ingest.join.label_join.Ready`. None: the log has none.
    """

    columns: pa.RecordBatch
    label: F32
    user: I64
    instance: I64
    time_ms: I64
    item: I64
    order: I64
    partition: I32
    late: npt.NDArray[np.bool_]
    words: I64 | None = None

    @property
    def final(self) -> npt.NDArray[np.bool_]:
        """bool[b], finals: no examples, but impressions that leave for a label whose window has passed."""
        return self.label >= FINAL_NEGATIVE

    def without_finals(self) -> Examples:
        """The same batch without its finals."""
        if not (final := self.final).any():
            return self
        stays = ~final
        return Examples(
            columns=self.columns.filter(pa.array(stays)),
            label=self.label[stays],
            user=self.user[stays],
            instance=self.instance[stays],
            time_ms=self.time_ms[stays],
            item=self.item[stays],
            order=self.order[stays],
            partition=self.partition[stays],
            late=self.late[stays],
            words=None if self.words is None else self.words[stays],
        )

    def __len__(self) -> int:
        return len(self.label)


class ExampleColumns:
    """Look-up join: the columns of a pipeline's plan for the rows of examples.

    Args:
        pipeline: its plan says which roots are read.
        tables: topic → look-up table.
    """

    def __init__(self, pipeline: Pipeline, tables: Mapping[str, LookupTable]) -> None:
        self._tables = tables
        self._roots = {root.name: dtypes.arrow_type(root.dtype) for root in pipeline.plan.roots}
        counted = {lookup.table.topic for lookup in pipeline.counters}
        self._lookup_roots = {  # topic of a table → column of it → root
            topic: {root.params[0].column: root.name for root in roots}
            for topic, roots in pipeline.lookup_roots.items()
            if roots and topic not in counted
        }
        self.versioned = pipeline.versioned & set(self._lookup_roots)
        """Topics of the tables that are looked up as of the impression's time."""
        streams = pipeline.streams
        self._words = bool(pipeline.log.more_labels)
        self.span_ms = pipeline.log.longest_ms + max(s.max_ahead_ms + s.max_disorder_ms for s in streams)
        """Time before an example's order for which rows of tables are kept: no impression that is not late
        (`ingest.join.reorder`) is older."""
        self._counters = {  # topic of a table → hits, misses
            topic: (metrics.lookups.labels(topic, "hit"), metrics.lookups.labels(topic, "miss"))
            for topic in self._lookup_roots
        }

    @property
    def topics(self) -> frozenset[str]:
        """Topics of the tables that features read."""
        return frozenset(self._lookup_roots)

    def examples(self, popped: Popped, passed: int, counted: Mapping[str, pa.Array]) -> Examples:
        """Batch of popped examples, with the columns of the plan.

        Rows of tables are those of the impression's time, if it lies at most `span_ms` before the example's
        order and not after it, else of the nearest such time.

        Args:
            popped: n rows with their labels and orders.
            passed: greatest order of the batches before. An example whose place has passed sees no older rows
                than an example there would: which of them are still there depends on the clock.
            counted: name of a root → rows of counters.
        """
        user, instance, time_ms, item = (
            popped.rows.column(name).to_numpy() for name in (USER, INSTANCE, TIME, ITEM)
        )
        ids = user, instance, time_ms, item, popped.order, popped.partition
        joined = self._joined(popped.rows, popped.order, passed, counted)
        return Examples(joined, popped.label, *ids, popped.late, popped.words)

    def _joined(
        self, rows: pa.RecordBatch, order: I64, passed: int, counted: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        """The plan's roots for b rows of a `Payload`, in the plan's order; see `examples`."""
        times = None
        if self.versioned:
            times = np.clip(rows.column(TIME).to_numpy(), order - self.span_ms, order)
            times = np.maximum(times, max(passed, FIRST + self.span_ms) - self.span_ms)
        columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), **counted}
        for topic, roots in self._lookup_roots.items():
            keys = columns[lookup_column(topic)].to_numpy()
            table = self._tables[topic]
            before = table.found, table.missing
            joined = table.columns(keys, list(roots), times if topic in self.versioned else None)
            hits, misses = self._counters[topic]
            hits.inc(table.found - before[0])
            misses.inc(table.missing - before[1])
            columns |= {roots[name]: column for name, column in joined.items()}
        if not self._roots:  # nothing is computed; the number of rows stays
            return rows.select([])
        return pa.RecordBatch.from_arrays([columns[name] for name in self._roots], names=list(self._roots))

    def no_examples(self) -> Examples:
        """A batch of 0 examples."""
        empty = np.empty(0, np.int64)
        columns = pa.RecordBatch.from_pylist([], schema=pa.schema(list(self._roots.items())))
        label, partition = np.empty(0, np.float32), np.empty(0, np.int32)
        late = np.empty(0, np.bool_)
        words = empty if self._words else None
        return Examples(columns, label, empty, empty, empty, empty, empty, partition, late, words)
