"""Joiner of a log whose label is a column, without its repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.apart import KeySample
from livectr.ingest.join.histories import BehaviorHistories
from livectr.ingest.join.label_join import Joiner, JoinStats, LabelJoin, Ready
from livectr.ingest.join.merge import Events
from livectr.ingest.join.payload import Payload
from livectr.ingest.language.keys import keys_of
from livectr.ingest.language.streams import View
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.join import DUPLICATE, FULL, JoinIndex
from livectr.kernels.stream.known import Columns

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def joiner(pipeline: Pipeline, partition: int, letters: DeadLetters) -> Joiner:
    """Joiner of a pipeline: a label join where the log has clicks, else the label column."""
    if pipeline.log.clicks is None:
        return Labelled(pipeline, partition)
    return LabelJoin(pipeline, partition, letters)


class Labelled:
    """Log whose label is a column: 1, or true, is a click.

    An instance key is partition · 2⁴⁰ + record number, counted without records that the stream's filter
    removed, and with repeats.
    """

    def __init__(self, pipeline: Pipeline, partition: int) -> None:
        view = pipeline.log
        self._label = view.label_column
        self._payload = Payload(pipeline)
        self._first = partition << 40
        self._count = 0
        self._repeats = Repeats(view) if view.dedup else None
        self.behaviors = BehaviorHistories(())
        self.stats = JoinStats({view.impressions.topic: 0} if view.dedup else {})

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows of `Ready`."""
        return self._payload.schema

    @property
    def pending(self) -> int:
        """0: no example waits for a label."""
        return 0

    @property
    def bytes(self) -> int:
        """Bytes of the index that finds repeats; 0 without `dedup`."""
        return self._repeats.bytes if self._repeats is not None else 0

    @property
    def waiting_clicks(self) -> int:
        """0: the log has no clicks of its own."""
        return 0

    @property
    def ahead_ms(self) -> I64:
        """int64[0]."""
        return np.empty(0, np.int64)

    @property
    def index(self) -> JoinIndex | None:
        """Index that finds repeats, which is saved as a log; None without `dedup`."""
        return self._repeats.index if self._repeats is not None else None

    @property
    def sample(self) -> KeySample | None:
        """None: the log has no clicks of its own."""
        return None

    @property
    def label_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Empty: labels are columns."""
        return {}

    def advance(self, events: Events, bound: int) -> Ready:
        """Events without their repeats as examples, all at once: `bound` holds none back."""
        batch = events.batches[0]
        if batch is None:
            empty = pa.RecordBatch.from_pylist([], schema=self._payload.schema)
            return Ready(empty, np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.bool_))
        instance = self._first + self._count + np.arange(len(events))
        self._count += len(events)
        user, time, order = events.users[0], events.times[0], events.mark
        if self._repeats is not None and (repeated := self._repeats.of(batch, order)).any():
            (topic,) = self.stats.duplicates
            self.stats.duplicates[topic] += int(np.count_nonzero(repeated))
            batch = batch.filter(pa.array(~repeated))
            instance, user, time, order = (of[~repeated] for of in (instance, user, time, order))
        if self._repeats is not None:
            self.stats.forgotten = self._repeats.forgotten
        label = batch.column(self._label).to_numpy(zero_copy_only=False) > 0
        rows = self._payload.rows(batch, {}, user, instance, time)
        return Ready(rows, label.astype(np.float32), order, np.zeros(len(rows), np.bool_))

    def export(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Counters as JSON types; with `dedup` also the newest remembered rows."""
        state: dict[str, Any] = {"count": self._count, "stats": asdict(self.stats)}
        if self._repeats is None:
            return state, {}
        counters, newest = self._repeats.export()
        return {**state, "repeats": counters}, {"repeats": newest}

    def restore(self, state: Mapping[str, Any], tables: Mapping[str, pa.Table], known: Columns) -> None:
        """Load state from `export` and rows of the log into a new joiner."""
        self._count, self.stats = state["count"], JoinStats(**state["stats"])
        if self._repeats is not None:
            self._repeats.restore(state["repeats"], tables["repeats"], known)


class Repeats:
    """Rows of a partition that are known by their `dedup` columns, for a window of event time.

    A row is a repeat if the watermark has advanced by no more than the window since the first row with its
    values. The watermark, not the row's own time, bounds the memory; it depends on the log alone.

    Args:
        view: its `dedup` columns, window and memory.

    Attributes:
        index: of the keys.
    """

    def __init__(self, view: View) -> None:
        self._columns = view.dedup
        self.index = JoinIndex(0, view.dedup_ms, max_bytes=view.join_bytes)
        self._full = 0  # rows for which there was no room at all

    @property
    def bytes(self) -> int:
        """Bytes of all state."""
        return self.index.counts.bytes

    @property
    def forgotten(self) -> int:
        """Rows so far that were forgotten before their time, to make room."""
        return self.index.counts.forgotten + self._full

    def of(self, batch: pa.RecordBatch, mark: I64) -> Mask:
        """bool[n], repeats among the next n rows of the partition.

        Args:
            batch: n rows.
            mark: int64[n], their watermarks.
        """
        key = keys_of(batch, self._columns)
        # The mark as time: a row whose clock is ahead is not known for longer than others.
        pushed = self.index.push(np.zeros(len(mark), np.uint8), key, mark, mark)
        self.index.release(int(mark[-1]))  # no further, so that a run to the log's end forgets nothing
        self._full += int(np.count_nonzero(pushed.status == FULL))
        repeated: Mask = pushed.status == DUPLICATE
        return repeated

    def export(self) -> tuple[list[int], pa.Table]:
        """Copy all state but the log of `index`: counters, and a row for each key of the newest mark."""
        state = self.index.export()
        newest = {
            name: pa.array(state[name]) for name in state if name not in ("clicks", "waiting", "counters")
        }
        return [*state["counters"].tolist(), self._full], pa.table(newest)

    def restore(self, counters: list[int], newest: pa.Table, known: Columns) -> None:
        """Load state from `export`, and rows of the log, into a new instance."""
        state: dict[str, npt.NDArray[Any]] = {
            name: newest.column(name).combine_chunks().to_numpy() for name in newest.column_names
        }
        state |= {"clicks": np.zeros(len(newest), np.int32), "waiting": np.empty(0, np.int64)}
        *own, self._full = counters
        self.index.restore(state | {"counters": np.array(own, np.int64)}, known)
