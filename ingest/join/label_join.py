"""Joiners: the event sequence of a partition becomes labelled examples.

`LabelJoin` joins clicks to impressions within a window of event time. `Labelled`, of `ingest.join.labelled`,
reads a log whose label is a column. Both depend on the sequence alone and emit examples with non-decreasing
`order`:

    LabelJoin   an impression leaves at its deadline, max(ts + window, mark); with a wait at
                max(ts + wait, mark), a late positive at its click's mark, and a final, where there are
                finals, at the end of the window
                and once more for each label beside the click, at max(ts + its window, mark), as a final
                (`ingest.join.label_kind`)
    Labelled    each impression leaves at once, at its mark (event time, or record number without time)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.dead_letters.letters import EXAMPLE, DeadLetters, Reason
from livectr.ingest.dead_letters.row_text import row_text
from livectr.ingest.decode.arrow_rows import concat_rows
from livectr.ingest.join.apart import KeySample
from livectr.ingest.join.histories import BehaviorHistories
from livectr.ingest.join.label_kind import LEAST_DEDUP_MS, Given, LabelKind
from livectr.ingest.join.label_kind import Pushed as LabelPushed
from livectr.ingest.join.merge import Events
from livectr.ingest.join.payload import INSTANCE, TIME, Payload
from livectr.ingest.join.window_join import WindowJoin
from livectr.ingest.language.keys import keys_of
from livectr.ingest.language.streams import Stream
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.stream.join import (
    DUPLICATE,
    FINAL_NEGATIVE,
    FULL,
    LATE,
    LATE_POSITIVE,
    POSITIVE,
    JoinIndex,
)
from livectr.kernels.stream.known import Columns

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

HISTORY, LABELS = "history.", "label."
"""Beginnings of the names of saved histories, and of the states of labels beside the click."""


@dataclass(frozen=True)
class Ready:
    """Batch of b finished examples in order.

    Args:
        rows: b rows of a `Payload`: roots of the impression stream, histories, keys and time.
        label: float32[b], 0 or 1; of a final FINAL_NEGATIVE, FINAL_POSITIVE or FINAL_LATE
            (`kernels.stream.join`).
        order: int64[b], place in the global sequence.
        late: bool[b], the impression has left before, with label 0: a late positive.
        words: int64[b], labels beside the click that are known (`ingest.join.label_kind`); of a row with some
            `label` is FINAL_NEGATIVE, or EARLY_LABEL or LATE_LABEL of `ingest.language.labels`. None: the log
            has none.
    """

    rows: pa.RecordBatch
    label: F32
    order: I64
    late: npt.NDArray[np.bool_]
    words: I64 | None = None

    @property
    def final(self) -> npt.NDArray[np.bool_]:
        """bool[b], finals: no examples, but impressions that leave for a label whose window has passed."""
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

    @property
    def label_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Label beside the click → `LabelKind.counts`."""

    def export(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Copy all state but the log of `index` and the histories, as JSON types and Arrow tables."""

    def restore(self, state: Mapping[str, Any], tables: Mapping[str, pa.Table], known: Columns) -> None:
        """Load state from `export` and rows of the log into a new joiner."""


def used_columns(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """Topic of each event stream → columns that features, keys, times and labels read."""
    view = pipeline.log
    names = [root.params[0].column for root in pipeline.request_roots]
    names += [
        view.impressions.key,
        *view.on,
        *view.dedup,
        *(name for lookup in pipeline.joined for name in lookup.keys),
    ]
    names += [name for label in view.more_labels for name in label.columns(view.on)]
    names += [
        name for name in (view.impressions.time, view.label_column, pipeline.item_column) if name is not None
    ]
    used = {view.impressions.topic: tuple(dict.fromkeys(names))}
    if view.clicks is not None:
        names = [view.clicks.key, *view.on, *([view.clicks.time] if view.clicks.time else [])]
        names += [name for root in pipeline.history_roots for name in root.params[0].columns]
        used[view.clicks.topic] = tuple(dict.fromkeys(names))
    for label in view.more_labels:
        stream = label.stream
        names = [stream.key, *label.columns(view.on), *([stream.time] if stream.time else [])]
        if (amount := pipeline.amounts.get(label.name)) is not None:
            names.append(amount.ref.column)
        used[stream.topic] = tuple(dict.fromkeys(names))
    return used


def required_columns(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """Topic of each event stream → columns that a usable record must have."""
    view = pipeline.log
    if view.clicks is None:
        return {
            view.impressions.topic: (
                *((view.label_column,) if view.label_column is not None else ()),
                *view.dedup,
            )
        }
    found = {view.impressions.topic: view.on, view.clicks.topic: view.on}
    return found | {label.stream.topic: label.columns(view.on) for label in view.more_labels}


def label_columns(pipeline: Pipeline) -> dict[str, str]:
    """Topic → label column, for a labelled event stream; empty for a label join."""
    view = pipeline.log
    return {view.impressions.topic: view.label_column} if view.label_column is not None else {}


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
        self._streams: tuple[Stream, ...] = pipeline.streams
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
        self._clicks = WindowJoin(self._join, self._window, self._payload.schema, finals=view.finals)
        self.behaviors = BehaviorHistories(
            pipeline.history_roots,
            self._payload.histories,
            # A record that is later than this counts as late (`kernels.stream.clock`).
            slack_ms=max(s.max_ahead_ms + s.max_disorder_ms for s in self._streams) + view.clock_slack_ms,
            spare=1 if view.clock_slack_ms else 0,
            max_bytes=view.join_bytes,
        )
        self._bits = {target.name: bit for bit, target in enumerate(pipeline.targets)}
        self._kinds = [
            LabelKind(
                label, self._bits[label.name], view, self._payload.schema, pipeline.amounts.get(label.name)
            )
            for label in view.more_labels
        ]
        windows = [view.window_ms, *(label.window_ms for label in view.more_labels)]
        self._alike = len(set(windows)) < len(windows)
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
        """Bytes of the join's indices, with the columns of impressions that wait; without histories."""
        return self._join.counts.bytes + sum(kind.bytes for kind in self._kinds)

    @property
    def label_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Label beside the click → `LabelKind.counts`."""
        return {kind.label.name: kind.counts for kind in self._kinds}

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
        every, events = events, events.first(2)
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
        rows, payload = None, None
        if impressions is not None and (waits := accepted & ~is_click).any():
            rows = impressions if everything else impressions.filter(pa.array(waits[~is_click]))
            payload = self._payload.rows(rows, histories, user[waits], key[waits], ts[waits])
            self._clicks.keep(payload, ts[waits], events.mark[waits])
        if self._kinds:
            came = accepted[~is_click]
            self._push_kinds(
                every, came, rows, payload, np.empty(0, np.int64) if size is None else size[came]
            )

        left, label, order, _ = self._clicks.release(bound)
        self.stats.late_positives += int(np.count_nonzero(label == LATE_POSITIVE))
        late = label == LATE_POSITIVE
        told = np.where(late, POSITIVE, label).astype(np.float32)
        ready = Ready(left, told, order, late)
        counts = self._join.counts
        self.stats.unmatched_clicks, self.stats.matched_clicks = counts.unmatched, counts.matched
        self.stats.behind_clicks, self.stats.forgotten = counts.behind, counts.forgotten
        return self._with_kinds(ready, bound) if self._kinds else ready

    def _push_kinds(
        self,
        events: Events,
        came: npt.NDArray[np.bool_],
        rows: pa.RecordBatch | None,
        payload: pa.RecordBatch | None,
        size: I64,
    ) -> None:
        """Give accepted impressions, and their own events, to the joins of the labels beside the click.

        Args:
            events: of all topics.
            came: bool of each impression among them: the join of clicks has accepted it.
            rows: the accepted impressions; None: there are none.
            payload: columns of their examples.
            size: bytes of these.
        """
        ts, stays = events.interleave(events.times), np.ones(len(events), np.bool_)
        stays[events.topic == 0] = came
        if payload is None:
            payload = pa.RecordBatch.from_pylist([], schema=self._payload.schema)
        for number, kind in enumerate(self._kinds, start=2):
            own = (stays & (events.topic == 0)) | (events.topic == number)
            if not own.any():
                continue
            given = Given(
                events.topic[own] == number,
                ts[own],
                events.mark[own],
                rows,
                events.batches[number],
                payload,
                size,
            )
            pushed = kind.push(given)
            self.stats.duplicates[kind.label.stream.topic] += pushed.repeats
            if pushed.full.any():
                self._refuse_kind(kind, given, pushed)

    def _with_kinds(self, ready: Ready, bound: int) -> Ready:
        """Examples, with the impressions that leave for a label beside the click, by rising order."""
        left = [kind.release(bound) for kind in self._kinds]
        count = sum(len(each.order) for each in left)
        words = np.concatenate([np.zeros(len(ready), np.int64), *(each.words for each in left)])
        if not count:
            return replace(ready, words=words)
        order = np.concatenate([ready.order, *(each.order for each in left)])
        rows = concat_rows([ready.rows, *(each.rows for each in left)])
        label = np.concatenate([ready.label, *(each.stage for each in left)])
        late = np.concatenate([ready.late, np.zeros(count, np.bool_)])
        by = np.argsort(order, kind="stable")  # of equal places, the example first
        if self._alike:
            rows, by, words = _once(
                rows, order, words, alone=label > FINAL_NEGATIVE, amounts=self._payload.amounts
            )
        return Ready(rows.take(pa.array(by)), label[by], order[by], late[by], words[by])

    def _keys(self, events: Events) -> list[I64]:
        """Join keys of the impressions and clicks."""
        return [keys_of(batch, self._on) for batch in events.batches]

    def _refuse(self, events: Events, full: npt.NDArray[np.bool_], key: I64) -> None:
        """Write dead letters for events for which there is no room."""
        self.stats.full += int(np.count_nonzero(full))
        detail = (
            f"the join of partition {self._partition} has no room within max_bytes={self._max_bytes}; "
            "give label_join more, or a shorter window"
        )
        for topic, (stream, batch) in enumerate(zip(self._streams[:2], events.batches, strict=True)):
            own = events.topic == topic
            if count := int(np.count_nonzero(own & full)):
                self._letters.rows.add(stream.topic, 0, {detail: count})
            for row, instance in zip(
                np.flatnonzero(full[own]).tolist(), key[own & full].tolist(), strict=True
            ):
                place = stream.topic, self._partition, EXAMPLE, instance
                self._letters.write(place, Reason.JOIN_FULL, detail, row_text(batch, row))

    def _refuse_kind(self, kind: LabelKind, given: Given, pushed: LabelPushed) -> None:
        """Write dead letters for events, and for impressions whose label is not learned, without room."""
        self.stats.full += int(np.count_nonzero(pushed.full))
        detail = (
            f"the join of label {kind.label.name!r}, partition {self._partition}, has no room within "
            f"max_bytes={self._max_bytes}; give label_join more, or the label a shorter window"
        )
        both = (
            (self._streams[0], given.impressions, ~given.is_event),
            (
                kind.label.stream,
                given.events,
                given.is_event,
            ),
        )
        for stream, batch, own in both:
            full = np.flatnonzero(pushed.full[own]).tolist()
            if full and stream is kind.label.stream:  # an impression is an example all the same
                self._letters.rows.add(stream.topic, 0, {detail: len(full)})
            for row, instance in zip(full, pushed.key[own & pushed.full].tolist(), strict=True):
                place = stream.topic, self._partition, EXAMPLE, instance
                self._letters.write(place, Reason.JOIN_FULL, detail, row_text(batch, row))

    def _count(self, status: npt.NDArray[np.uint8], is_click: npt.NDArray[np.bool_]) -> None:
        duplicate = status == DUPLICATE
        clicks = int(np.count_nonzero(duplicate & is_click))
        self.stats.duplicates[self._streams[0].topic] += int(np.count_nonzero(duplicate)) - clicks
        self.stats.duplicates[self._streams[1].topic] += clicks
        self.stats.late_clicks += int(np.count_nonzero(status == LATE))

    def export(self) -> tuple[dict[str, Any], dict[str, pa.Table]]:
        """Copy all state but known keys and histories, with the columns of impressions that may leave."""
        counters, tables = self._clicks.export()
        state: dict[str, Any] = {"counters": counters, "stats": asdict(self.stats)}
        for kind in self._kinds:
            state[LABELS + kind.label.name], own = kind.export()
            tables |= own
        return state, tables

    def restore(self, state: Mapping[str, Any], tables: Mapping[str, pa.Table], known: Columns) -> None:
        """Load state from `export` and rows of the log into a new join."""
        self._clicks.restore(state["counters"], tables, known)
        for kind in self._kinds:
            kind.restore(state[LABELS + kind.label.name], tables)
        self.behaviors.restore(
            {name: tables[HISTORY + name] for name in self.behaviors.names if HISTORY + name in tables}
        )
        self.stats = JoinStats(**state["stats"])


def _once(
    rows: pa.RecordBatch,
    order: I64,
    words: I64,
    *,
    alone: npt.NDArray[np.bool_],
    amounts: Sequence[str],
) -> tuple[pa.RecordBatch, I64, I64]:
    """Let an impression leave once for all labels of equal windows, which are known at the same place.

    Args:
        rows: n rows that leave, those of clicks first.
        order: int64[n], their places.
        words: int64[n], labels that they know.
        alone: bool[n], rows that stay as they are: their label is not final.
        amounts: columns of the labels' events, which the rows of their labels alone have.

    Returns:
        The rows, with all amounts in those that stay; these int64[k], by rising place; and words int64[n] of
        which theirs know all.
    """
    instance, time = (rows.column(name).to_numpy() for name in (INSTANCE, TIME))
    near = np.lexsort((alone, time, instance, order))  # stable: of equal rows, the example first
    first = np.ones(len(near), np.bool_)
    if len(near):
        same = [each[near[1:]] == each[near[:-1]] for each in (order, instance, time)]
        same.append(~(alone[near[1:]] | alone[near[:-1]]))
        first[1:] = ~np.logical_and.reduce(same)
    starts = np.flatnonzero(first)
    stays = near[starts]
    words = words.copy()
    words[stays] = np.bitwise_or.reduceat(words[near], starts) if len(starts) else words[stays]
    for column in amounts:
        rows = _gathered(rows, column, near, np.cumsum(first) - 1, stays)
    stays = np.sort(stays)
    return rows, stays[np.argsort(order[stays], kind="stable")], words


def _gathered(rows: pa.RecordBatch, column: str, near: I64, group: I64, stays: I64) -> pa.RecordBatch:
    """Give a column of the row that stays of each group the value that a row of the group has.

    Args:
        rows: n rows; at most one of a group has a value.
        column: name.
        near: int64[n], rows in the order of their groups.
        group: int64[n], groups of these.
        stays: int64[k], row of each group that stays.
    """
    place = rows.schema.get_field_index(column)
    values = rows.column(place)
    has = np.asarray(values.is_valid().to_numpy(zero_copy_only=False))[near]
    source = np.arange(len(near))
    source[stays[group[has]]] = near[has]
    return rows.set_column(place, rows.schema.field(place), values.take(pa.array(source)))
