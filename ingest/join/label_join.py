"""Joiners: the event sequence of a partition becomes labelled examples.

`LabelJoin` joins clicks to impressions within a window of event time. `Labelled`, of `ingest.join.labelled`,
reads a log whose label is a column. Both depend on the sequence alone and emit examples with non-decreasing
`order`:

    LabelJoin   an impression leaves at its deadline, max(ts + window, mark); with a wait at
                max(ts + wait, mark), a late positive at its click's mark, and a final, where there are
                finals, at the end of the window
    Labelled    each impression leaves at once, at its mark (event time, or record number without time)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.dead_letters.letters import EXAMPLE, DeadLetters, Reason
from livectr.ingest.dead_letters.row_text import row_text
from livectr.ingest.join.apart import KeySample
from livectr.ingest.join.histories import BehaviorHistories
from livectr.ingest.join.merge import Events
from livectr.ingest.join.payload import Payload
from livectr.ingest.join.row_log import RowLog
from livectr.ingest.language.keys import key_of
from livectr.ingest.language.streams import Stream
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.keys.keys import combine_keys
from livectr.kernels.runtime.offsets import offsets_of
from livectr.kernels.stream.join import (
    AFTER_WAIT,
    DUPLICATE,
    FINAL_NEGATIVE,
    FULL,
    IN_WINDOW,
    LATE,
    LATE_POSITIVE,
    PENDING,
    POSITIVE,
    PROVISIONAL,
    JoinIndex,
)
from livectr.kernels.stream.known import Columns
from livectr.system.errors import MismatchError

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

LEAST_DEDUP_MS = 600_000
"""Keys are remembered after their deadline for the window or the clock slack, and at least for this time."""
PART_ROWS = 16_384
HISTORY = "history."
"""Beginning of the names of saved histories."""


@dataclass(frozen=True)
class Ready:
    """Batch of b finished examples in order.

    Args:
        rows: b rows of a `Payload`: roots of the impression stream, histories, keys and time.
        label: float32[b], 0 or 1; of a final FINAL_NEGATIVE, FINAL_POSITIVE or FINAL_LATE
            (`kernels.stream.join`).
        order: int64[b], place in the global sequence.
        late: bool[b], the impression has left before, with label 0: a late positive.
    """

    rows: pa.RecordBatch
    label: F32
    order: I64
    late: npt.NDArray[np.bool_]

    @property
    def final(self) -> npt.NDArray[np.bool_]:
        """bool[b], finals: impressions that have left before, and whose window has passed."""
        return self.label >= FINAL_NEGATIVE

    def __len__(self) -> int:
        return len(self.order)


@dataclass
class JoinStats:
    """Counts since the start of the log; they are saved with the state."""

    duplicates: dict[str, int] = field(default_factory=dict)
    late_clicks: int = 0
    unmatched_clicks: int = 0
    matched_clicks: int = 0
    """Clicks that label an impression."""
    behind_clicks: int = 0
    """Clicks among them with a time before that of their impression, inside the slack."""
    late_positives: int = 0
    full: int = 0
    """Events for which the join had no room."""
    forgotten: int = 0
    """Keys that were dropped before their time, to make room."""


class Joiner(Protocol):
    """Turns released events into examples."""

    stats: JoinStats
    behaviors: BehaviorHistories

    def advance(self, events: Events, bound: int) -> Ready:
        """Add events; return the examples with an order below `bound`."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows of `Ready`."""

    @property
    def pending(self) -> int:
        """Examples that wait for their label."""

    @property
    def bytes(self) -> int:
        """Bytes kept for events to come, without histories."""

    @property
    def waiting_clicks(self) -> int:
        """Clicks that have met no impression yet."""

    @property
    def ahead_ms(self) -> I64:
        """Times int64[n] by which the last clicks were before their impressions, too much to label them."""

    @property
    def index(self) -> JoinIndex | None:
        """Remembered keys, which are saved as a log; None: the join remembers no keys."""

    @property
    def sample(self) -> KeySample | None:
        """Sample of this process's events by join key; None: no clicks are joined."""

    def export(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Copy all state but the log of `index` and the histories, as JSON types and Arrow tables."""

    def restore(self, state: Mapping[str, Any], tables: Mapping[str, pa.Table], known: Columns) -> None:
        """Load state from `export` and rows of the log into a new joiner."""


def used_columns(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """Topic of each event stream → columns that features, keys, times and labels read."""
    view = pipeline.log
    names = [root.params[0].column for root in pipeline.request_roots]
    names += [view.impressions.key, *view.on, *view.dedup, *(lookup.on for lookup in pipeline.joined)]
    names += [name for name in (view.impressions.time, view.label, pipeline.item_column) if name is not None]
    used = {view.impressions.topic: tuple(dict.fromkeys(names))}
    if view.clicks is not None:
        names = [view.clicks.key, *view.on, *([view.clicks.time] if view.clicks.time else [])]
        names += [name for root in pipeline.history_roots for name in root.params[0].columns]
        used[view.clicks.topic] = tuple(dict.fromkeys(names))
    return used


def required_columns(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """Topic of each event stream → columns that a usable record must have."""
    view = pipeline.log
    if view.clicks is None:
        return {view.impressions.topic: (*((view.label,) if view.label is not None else ()), *view.dedup)}
    return {view.impressions.topic: view.on, view.clicks.topic: view.on}


def label_columns(pipeline: Pipeline) -> dict[str, str]:
    """Topic → label column, for a labelled event stream; empty for a label join."""
    view = pipeline.log
    return {view.impressions.topic: view.label} if view.label is not None else {}


def cast_saved(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast saved example rows to a schema; additional saved columns are dropped.

    Raises:
        MismatchError: a column is missing, because the rows were read for fewer features.
    """
    missing = [name for name in schema.names if name not in table.column_names]
    if missing and len(table):
        raise MismatchError(
            f"{len(table)} examples that wait in the checkpoint lack {', '.join(missing)}, which their "
            "features need; continue with the materialized features that the checkpoint was made with"
        )
    return table.select(schema.names).cast(schema) if not missing else schema.empty_table()


def keys_of(batch: pa.RecordBatch | None, names: Sequence[str]) -> I64:
    """Key of some columns for each row: int64[n]; without a batch, of no row."""
    if batch is None:
        return np.empty(0, np.int64)
    return reduce(combine_keys, (key_of(batch.column(name)) for name in names))


class LabelJoin:
    """Label join: impressions get label 1 when a click follows within the window.

    The join is `kernels.stream.join.JoinIndex`.

    Duplicates count once. A click that comes after the window is counted. With a wait, an impression without
    a click leaves as a provisional negative. Its columns are kept until the window ends, so that a late
    positive and a final have its roots and histories. An event for which there is no room becomes a dead
    letter.
    """

    def __init__(self, pipeline: Pipeline, partition: int, letters: DeadLetters) -> None:
        view = pipeline.log
        self._partition, self._letters, self._max_bytes = partition, letters, view.join_bytes
        if view.clicks is None:
            raise ValueError("the view has no click stream")
        self._streams: tuple[Stream, Stream] = (view.impressions, view.clicks)
        self._on = view.on
        self._window = view.window_ms
        # A click waits for as long as an impression may come that it labels.
        self._dedup = max(view.window_ms, view.clock_slack_ms, view.dedup_ms, LEAST_DEDUP_MS)
        self._finals = view.finals
        self._join = JoinIndex(
            self._window,
            self._dedup,
            wait_ms=view.leaves_ms,
            finals=view.finals,
            slack_ms=view.clock_slack_ms,
            max_bytes=view.join_bytes,
        )
        self._payload = Payload(pipeline)
        self._columns = RowLog(self._payload.schema, part_rows=PART_ROWS)
        self.behaviors = BehaviorHistories(
            pipeline.history_roots,
            self._payload.histories,
            # A record that is later than this counts as late (`kernels.stream.clock`).
            slack_ms=max(s.max_ahead_ms + s.max_disorder_ms for s in self._streams) + view.clock_slack_ms,
            spare=1 if view.clock_slack_ms else 0,
            max_bytes=view.join_bytes,
        )
        self.stats = JoinStats({stream.topic: 0 for stream in self._streams})
        self.sample = KeySample(partition)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows of `Ready`, with histories."""
        return self._payload.schema

    @property
    def pending(self) -> int:
        """Impressions that wait for a click or for the end of their window."""
        return self._join.counts.pending

    @property
    def bytes(self) -> int:
        """Bytes of the join's index, with the columns of impressions that wait; without histories."""
        return self._join.counts.bytes

    @property
    def waiting_clicks(self) -> int:
        """Clicks that have met no impression yet."""
        return self._join.counts.waiting

    @property
    def ahead_ms(self) -> I64:
        """See `kernels.stream.join.JoinIndex.ahead_ms`."""
        return self._join.ahead_ms

    @property
    def index(self) -> JoinIndex:
        """Remembered keys, which are saved as a log."""
        return self._join

    def advance(self, events: Events, bound: int) -> Ready:
        """Join the next events; return the examples with an order below `bound`, by rising order."""
        impressions, clicks = events.batches
        key, user, ts = (
            events.interleave(parts) for parts in (self._keys(events), events.users, events.times)
        )
        is_click = events.topic == 1
        size = None if impressions is None else self._payload.sizes(impressions)
        pushed = self._join.push(events.topic, key, ts, events.mark, size)
        self.sample.add(events.topic, key, user)
        accepted = pushed.status != DUPLICATE
        self._count(pushed.status, is_click)
        if (full := pushed.status == FULL).any():
            self._refuse(events, full, key)
            accepted &= ~full

        # Histories see every event except duplicates; each impression sees the clicks before it, but not
        # its own.
        everything = bool(accepted.all())
        seen: slice | npt.NDArray[np.bool_] = slice(None) if everything else accepted
        if clicks is not None and not everything:
            clicks = clicks.filter(pa.array(accepted[is_click]))
        histories = self.behaviors.advance(
            is_click[seen], user[seen], pushed.seen[seen], clicks, mark=events.mark[seen]
        )
        if impressions is not None and (waits := accepted & ~is_click).any():
            rows = impressions if everything else impressions.filter(pa.array(waits[~is_click]))
            payload = self._payload.rows(rows, histories, user[waits], key[waits], ts[waits])
            deadline = np.maximum(ts[waits] + self._window, events.mark[waits])
            self._columns.append(payload, until=int(deadline.max()))

        slot, label, _, order = self._join.release(bound)
        self.stats.late_positives += int(np.count_nonzero(label == LATE_POSITIVE))
        late = label == LATE_POSITIVE
        told = np.where(late, POSITIVE, label).astype(np.float32)
        ready = Ready(self._columns.take(slot), told, order, late)
        self._columns.drop(bound)
        counts = self._join.counts
        self.stats.unmatched_clicks, self.stats.matched_clicks = counts.unmatched, counts.matched
        self.stats.behind_clicks, self.stats.forgotten = counts.behind, counts.forgotten
        return ready

    def _keys(self, events: Events) -> list[I64]:
        """Join keys of the events, by topic."""
        return [keys_of(batch, self._on) for batch in events.batches]

    def _refuse(self, events: Events, full: npt.NDArray[np.bool_], key: I64) -> None:
        """Write dead letters for events for which there is no room."""
        self.stats.full += int(np.count_nonzero(full))
        detail = (
            f"the join of partition {self._partition} has no room within max_bytes={self._max_bytes}; "
            "give label_join more, or a shorter window"
        )
        for topic, (stream, batch) in enumerate(zip(self._streams, events.batches, strict=True)):
            own = events.topic == topic
            if count := int(np.count_nonzero(own & full)):
                self._letters.rows.add(stream.topic, 0, {detail: count})
            for row, instance in zip(
                np.flatnonzero(full[own]).tolist(), key[own & full].tolist(), strict=True
            ):
                place = stream.topic, self._partition, EXAMPLE, instance
                self._letters.write(place, Reason.JOIN_FULL, detail, row_text(batch, row))

    def _count(self, status: npt.NDArray[np.uint8], is_click: npt.NDArray[np.bool_]) -> None:
        duplicate = status == DUPLICATE
        clicks = int(np.count_nonzero(duplicate & is_click))
        self.stats.duplicates[self._streams[0].topic] += int(np.count_nonzero(duplicate)) - clicks
        self.stats.duplicates[self._streams[1].topic] += clicks
        self.stats.late_clicks += int(np.count_nonzero(status == LATE))

    def export(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Copy all state but known keys and histories, with the columns of impressions that may still leave.

        Slots are renumbered from 0, because restored columns start there.
        """
        join = self._join.export()
        kept = np.flatnonzero(self._may_leave(join))
        kept = kept[np.argsort(join["slot"][kept])]
        payload = self._columns.take(join["slot"][kept].astype(np.int64))
        slot = np.full(len(join["key"]), -1, np.int64)
        slot[kept] = np.arange(len(kept))
        counters = join.pop("counters")
        counters[0] = len(kept)
        clicks, waiting = join.pop("clicks"), join.pop("waiting")
        offsets = pa.array(offsets_of(clicks, "clicks that wait for an impression"))
        columns = {name: pa.array(values) for name, values in {**join, "slot": slot}.items()}
        columns["clicks"] = pa.ListArray.from_arrays(offsets, pa.array(waiting))
        tables = {"join": pa.table(columns), "payload": pa.Table.from_batches([payload])}
        return {"counters": counters.tolist(), "stats": asdict(self.stats)}, tables

    def restore(self, state: Mapping[str, Any], tables: Mapping[str, pa.Table], known: Columns) -> None:
        """Load state from `export` and rows of the log into a new join."""
        saved = tables["join"].combine_chunks()
        clicks = saved.column("clicks").combine_chunks()
        join: dict[str, npt.NDArray[Any]] = {
            name: saved.column(name).to_numpy() for name in saved.column_names if name != "clicks"
        }
        join["clicks"] = np.diff(clicks.offsets.to_numpy()).astype(np.int32)
        join["waiting"] = np.array(clicks.flatten().to_numpy(), np.int64)
        join["counters"] = np.array(state["counters"], np.int64)
        self._join.restore(join, known)
        kept = np.flatnonzero(join["slot"] >= 0)
        kept = kept[np.argsort(join["slot"][kept])]
        ends = np.maximum(join["deadline"][kept], join["ts"][kept] + self._window)
        for start in range(0, len(kept), PART_ROWS):
            rows = cast_saved(tables["payload"].slice(start, PART_ROWS), self.schema).combine_chunks()
            until = int(ends[start : start + PART_ROWS].max())
            self._columns.append(rows.to_batches()[0], until=until)
        self.behaviors.restore(
            {name: tables[HISTORY + name] for name in self.behaviors.names if HISTORY + name in tables}
        )
        self.stats = JoinStats(**state["stats"])

    def _may_leave(self, join: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
        """Mask bool[n] of the keys whose impression waits, or may leave once more.

        It may leave by a late click or as a final.
        """
        leaves: npt.NDArray[np.bool_] = join["state"] == PENDING
        open_ = self._finals | ~np.isin(join["clicked"], (IN_WINDOW, AFTER_WAIT))
        leaves |= (join["state"] == PROVISIONAL) & open_
        # A state of a join without finals has no columns of what has got its click: it leaves no more.
        return leaves & (join["slot"] >= 0)
