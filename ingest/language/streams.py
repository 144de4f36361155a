"""Inputs of a pipeline: event streams, look-up tables, and the view that joins them (FeatureBox §3).

These are declarations; `ingest.join.examples` executes them. Columns are attributes: `impressions.user_id` is
an expression. A column with the name of an attribute of the class (`key`, `time`, …) is `impressions["key"]`.

    Stream --label_join/labelled--> View --lookup--> View        recent(stream.column): a user's history
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from livectr.ingest.language import dtypes
from livectr.ingest.language.columns import Columns, UnknownColumnError
from livectr.ingest.language.delays import Delayed, wait_ms
from livectr.ingest.language.event_times import MAX_AHEAD_MS, EventTime
from livectr.ingest.language.expr import ColumnRef, Expr, RecentRef, column
from livectr.ingest.language.hidden import mark
from livectr.ingest.language.labels import check_name
from livectr.ingest.language.roots import needs_statistics, roots_of
from livectr.ingest.language.tables import AsOf, Lookup, Table
from livectr.kernels.stream.join import MAX_BYTES
from livectr.system.byte_units import parse_bytes
from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

CLOCK_SLACK_MS = 2_000


@dataclass(frozen=True, eq=False, repr=False)
class Stream(Columns):
    """Declaration of a log of events.

    Args:
        topic: Kafka topic, or folder of files under the source.
        columns: name → type of every column that may be read.
        key: column that partitions the topic (the user).
        time: column of the event time, int64 in milliseconds since 1970, or an EventTime with its unit and
            bounds; None: events are ordered by their position in the log.
        json_fields: new column → "column.path.to.field" inside a string column of JSON; its type is in
            `columns`.
        fill: column → value for nulls. Without it nulls are 0, "", false or an empty list.
        where: function from this stream to a bool expression over its columns; other rows are dropped.

    Raises:
        ConfigError: an argument is wrong, or the arguments do not fit together.

    Example:
        clicks = Stream(
            "clicks", key="user_id", time="ts",
            columns={"user_id": "int64", "ad_id": "int64", "ts": "int64"},
        )
    """

    json_fields: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, Any] = field(default_factory=dict)
    where: Callable[[Stream], Expr] | None = None
    time_unit: str | None = None
    max_ahead_ms: int = MAX_AHEAD_MS
    max_disorder_ms: int = 0

    def __init__(
        self,
        topic: str,
        *,
        columns: Mapping[str, str],
        key: str,
        time: str | EventTime | None = None,
        json_fields: Mapping[str, str] | None = None,
        fill: Mapping[str, Any] | None = None,
        where: Callable[[Stream], Expr] | None = None,
    ) -> None:
        event_time = EventTime(time) if isinstance(time, str) else time
        values: dict[str, Any] = dict(topic=topic, key=key, columns=columns, time=None, where=where)
        values |= dict(json_fields=dict(json_fields or {}), fill=dict(fill or {}))
        if event_time is not None:
            values |= dict(time=event_time.column, time_unit=event_time.unit)
            values |= dict(max_ahead_ms=event_time.max_ahead_ms, max_disorder_ms=event_time.max_disorder_ms)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, path in self.json_fields.items():
            origin, _, inner = path.partition(".")
            if name not in self.columns:
                raise UnknownColumnError(f"{self.topic}: give the type of JSON field {name!r} in columns")
            if not inner or self.columns.get(origin) not in dtypes.TEXTS or origin in self.json_fields:
                raise ConfigError(
                    f"{self.topic}: JSON field {name!r} is {path!r}; "
                    'write "column.path.to.field" with a string column'
                )
        for name, value in self.fill.items():
            if name not in self.columns:
                raise UnknownColumnError(f"{self.topic}: fill names {name!r}; {self._known()}")
            dtypes.check_value(value, self.columns[name], f"{self.topic}: fill of {name!r}")
        if self.filter is not None:
            foreign = [root.name for root in roots_of(self.filter) if root.ref.source != self.topic]
            if self.filter.dtype != "bool" or foreign:
                raise ConfigError(
                    f"{self.topic}: where must be a bool expression over this stream's columns, "
                    f"not {self.filter} ({self.filter.dtype})"
                )
            if needs_statistics(self.filter):
                raise ConfigError(
                    f"{self.topic}: where cannot depend on running statistics, for they learn from its rows: "
                    f"{self.filter}"
                )

    @property
    def filter(self) -> Expr | None:
        """Bool expression that a row must satisfy, or None."""
        return None if self.where is None else self.where(self)

    def _column(self, name: str) -> Expr:
        # The fill is part of the node, so that a missing value of a serving request gives the same feature.
        return column(ColumnRef(self.topic, name, fill=self.fill.get(name)), self.columns[name])

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, where={self.filter})"

    def _settings(self) -> list[str]:
        # Default values are left out, so that fingerprints of older pipelines stay the same.
        usual = {
            name: self.__dataclass_fields__[name].default for name in ("max_ahead_ms", "max_disorder_ms")
        }
        return [
            name for name in super()._settings() if name not in usual or getattr(self, name) != usual[name]
        ]


@dataclass(frozen=True, eq=False)
class Label:
    """Kind of events beside the click that may follow an impression, such as orders.

    An impression is joined with them as with its clicks, in a window of its own, and waits for them on its
    own: `Target(name)` learns it when this window has passed, while the click is learned when that of clicks
    has. See `ingest.join.label_kind`.

    Args:
        name: of the target that learns it, such as "order".
        stream: events with a time column, keyed as the impressions.
        window: duration of event time after the impression, such as "1d".
        on: column or columns that identify an impression in both streams; None: those of the clicks.
        wait: duration after which an impression leaves with what is known then; see `delayed`.
        delayed: "wait": the head learns the label when the window has passed. "fnw", "es_dfm": it learns what
            is known after `wait`, late events when they come, and final labels (`label_join`).

    Raises:
        ConfigError: an argument is wrong.

    Example:
        log = label_join(shown, clicks, on="id", window="10m", labels=[Label("order", orders, window="1d")])
    """

    name: str
    stream: Stream
    window: str | int
    on: str | tuple[str, ...] | None = None
    wait: str | int | None = None
    delayed: Delayed = "wait"

    def __post_init__(self) -> None:
        check_name(self.name, "Label")
        if self.delayed == "vanilla":
            raise ConfigError(
                f'Label {self.name!r}: delayed="vanilla" is of clicks alone; take "fnw" or "es_dfm"'
            )
        _ = self.leaves_ms

    @property
    def provisional(self) -> bool:
        """True when impressions leave before this label is final, and once more as finals."""
        return self.delayed != "wait"

    @property
    def leaves_ms(self) -> int:
        """Time after which an impression leaves for this label: the wait, or the window."""
        wait = wait_ms(self.delayed, self.wait, self.window_ms, f"Label {self.name!r}")
        return wait if self.provisional else self.window_ms

    @property
    def window_ms(self) -> int:
        """Window in milliseconds."""
        return duration_ms(self.window, f"Label {self.name!r} window")

    def columns(self, clicks: Sequence[str]) -> tuple[str, ...]:
        """Columns of the join.

        Args:
            clicks: those of the clicks.
        """
        if self.on is None:
            return tuple(clicks)
        return (self.on,) if isinstance(self.on, str) else tuple(self.on)

    def __repr__(self) -> str:
        # A part of the fingerprint: "60m" is "1h".
        late = f", delayed={self.delayed!r}, wait_ms={self.leaves_ms}" if self.provisional else ""
        return f"Label({self.name!r}, {self.stream!r}, window_ms={self.window_ms}, on={self.on!r}{late})"


@dataclass(frozen=True, repr=False)
class View:
    """Labelled impressions with their look-ups; its attributes are the columns of the impression stream.

    Args:
        impressions: the stream of impressions.
        clicks: the stream of clicks; None for a stream whose label is a column.
        on: columns of the label join.
        window_ms: window of the label join.
        label_column: the label's column; None for a label join.
        lookups: look-up joins.
        clock_slack_ms: time by which a click may be before its impression.
        join_bytes: memory of the label join of each partition.
        delayed: way to learn labels that come late.
        wait_ms: time after which an impression without a click leaves as a provisional negative; 0: the
            window.
        dedup: columns of a labelled log whose equal values make a repeat.
        dedup_ms: window of `dedup`; in a label join, least time for which keys are remembered.
        more_labels: labels beside the click.
    """

    impressions: Stream
    clicks: Stream | None = None
    on: tuple[str, ...] = ()
    window_ms: int = 0
    label_column: str | None = None
    lookups: tuple[Lookup, ...] = ()
    join_bytes: int = MAX_BYTES
    delayed: Delayed = "wait"
    wait_ms: int = 0
    dedup: tuple[str, ...] = ()
    dedup_ms: int = 0
    clock_slack_ms: int = CLOCK_SLACK_MS
    more_labels: tuple[Label, ...] = ()

    def __post_init__(self) -> None:
        for name in set(self.impressions.columns) & set(self.__dataclass_fields__):
            mark(self, name, f'log["{name}"]')

    @property
    def provisional(self) -> bool:
        """True when impressions leave before their label is final."""
        return self.delayed != "wait"

    @property
    def finals(self) -> bool:
        """True when impressions leave once more when their window has passed, as finals (models.losses)."""
        return self.delayed in ("fnw", "es_dfm")

    @property
    def leaves_again(self) -> bool:
        """True when impressions leave more than once without being examples again.

        They leave as finals, or for a label beside the click.
        """
        return self.finals or bool(self.more_labels)

    @property
    def longest_ms(self) -> int:
        """Longest window of a label."""
        return max([self.window_ms, *(label.window_ms for label in self.more_labels)])

    @property
    def soonest_ms(self) -> int:
        """Least time after which an impression leaves, for any label."""
        return min([self.leaves_ms, *(label.leaves_ms for label in self.more_labels)])

    @property
    def late_labels(self) -> tuple[Label, ...]:
        """Labels beside the click that are learned before they are final."""
        return tuple(label for label in self.more_labels if label.provisional)

    @property
    def leaves_ms(self) -> int:
        """Time after which an impression leaves: the wait, or the window."""
        return self.wait_ms if self.provisional else self.window_ms

    @property
    def known_after_ms(self) -> int:
        """Longest time from an impression to its last label, but of impressions that come too late."""
        return self.longest_ms + self.impressions.max_disorder_ms

    def lookup(self, table: Table, on: str | None = None, *, as_of: AsOf | None = None) -> View:
        """Look up rows of a table for each impression.

        Args:
            table: to be looked up.
            on: impression column that holds the table's key; by default the column with the key's name.
            as_of: "event_time": the row that was valid at the impression's time; the default where table and
                impressions have a time column. "latest": the newest row that the trainer has read when the
                example leaves, so that a second run over the same log may see others.

        Raises:
            ConfigError: the types differ, the table is looked up already, or a time is missing.

        Example:
            log = label_join(impressions, clicks, on="request_id", window="10m").lookup(ads)
        """
        on = table.key if on is None else on
        kind, wanted = self.impressions[on].dtype, table.columns[table.key]
        if kind != wanted and not {kind, wanted} <= {"int32", "int64"}:
            raise ConfigError(
                f"look-up of {table.topic}: {self.impressions.topic}.{on} is {kind}, "
                f"but {table.topic}.{table.key} is {wanted}"
            )
        if any(entry.table.topic == table.topic for entry in self.lookups):
            raise ConfigError(f"{table.topic} is looked up twice; a table is looked up by one column")
        entry = Lookup.of(table, on, as_of, timed=self.impressions.time is not None)
        return replace(self, lookups=(*self.lookups, entry))

    def __getitem__(self, name: str) -> Expr:
        return self.impressions[name]

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.impressions[name]

    def __repr__(self) -> str:
        # As in a stream, default values are not part of the fingerprint.
        later = (
            *("join_bytes", "delayed", "wait_ms", "dedup", "dedup_ms", "clock_slack_ms"),
            "more_labels",
        )
        usual = {name: self.__dataclass_fields__[name].default for name in later}
        names = [name for name in self.__dataclass_fields__ if name not in usual]
        names += [name for name, value in usual.items() if getattr(self, name) != value]
        # The fingerprint has the names that it began with, too.
        called = {"label_column": "label"}
        shown = [f"{called.get(name, name)}={getattr(self, name)!r}" for name in names]
        shown.insert(4, "correct_late=False")  # a constant: pipelines keep the fingerprint that they have
        return f"View({', '.join(shown)})"


def label_join(
    impressions: Stream,
    clicks: Stream,
    *,
    on: str | tuple[str, ...],
    window: str | int,
    wait: str | int | None = None,
    delayed: Delayed = "wait",
    clock_slack: str | int = CLOCK_SLACK_MS,
    max_bytes: str | int = MAX_BYTES,
    labels: Sequence[Label] = (),
) -> View:
    """Label impressions by clicks: 1 when a click with equal `on` columns follows within `window`.

    Both topics must be partitioned alike by their key columns (the user), so that a pair meets on one rank.

    Args:
        impressions: stream with a time column.
        clicks: stream with a time column.
        on: column or columns that identify an impression in both streams.
        window: duration of event time after the impression, such as "30m".
        delayed: "wait": an impression leaves once, when its window has passed. "fnw", "es_dfm" and
            "vanilla": after `wait` an impression without a click leaves as a provisional negative; a click
            that comes later, but inside the window, emits it once more as a late positive. With "fnw" and
            "es_dfm" it leaves a last time, with its final label, when its window has passed. They learn
            all of these without bias, whether a key is still shown or not (models.fnw, models.es_dfm).
            "vanilla" learns provisional negatives and late positives as they are: it predicts
            p / (1 + p s), with s the share of clicks that come after the wait, and far more for a key that
            is shown no longer.
        wait: duration after the impression, shorter than the window; "10s" if not given. With
            `delayed="wait"` it cannot be given, and with "es_dfm" it must be.
        clock_slack: duration by which a click's time may be before that of its impression, for their clocks
            differ; 0: not at all. Histories of such an impression end before its click.
        max_bytes: memory of each partition's join, such as "1GiB". An impression or an unmatched click for
            which it has no room becomes a dead letter. The histories of `recent` have as much again. The
            limit is for a partition, so that results do not depend on the number of ranks. Each of `labels`
            has as much again.
        labels: other events that may follow an impression, each with a window of its own (`Label`); targets
            of their names learn them. With `delayed="wait"` alone.

    Raises:
        ConfigError: the streams cannot be joined.

    Example:
        log = label_join(impressions, clicks, on="request_id", window="30m", wait="10s", delayed="fnw")
    """
    names = (on,) if isinstance(on, str) else tuple(on)
    _check_pair(impressions, clicks, names, "label_join")
    more = _checked_labels(impressions, clicks, names, labels)
    if more and delayed != "wait":
        raise ConfigError(
            f'label_join: labels beside the click do not go with delayed="{delayed}": all labels have to be '
            'final; use delayed="wait", and give each label the window that it needs'
        )
    window_ms = duration_ms(window, "label_join window")
    return View(
        impressions,
        clicks,
        on=names,
        window_ms=window_ms,
        clock_slack_ms=0 if clock_slack == 0 else duration_ms(clock_slack, "label_join clock_slack"),
        join_bytes=parse_bytes(max_bytes, "label_join max_bytes"),
        delayed=delayed,
        wait_ms=wait_ms(delayed, wait, window_ms),
        more_labels=more,
    )


def _checked_labels(
    impressions: Stream, clicks: Stream, on: tuple[str, ...], labels: object
) -> tuple[Label, ...]:
    """Labels beside the click. Raises ConfigError for those that cannot be joined."""
    if not isinstance(labels, Sequence) or not all(
        isinstance(each, Label) and isinstance(each.stream, Stream) for each in labels
    ):
        raise ConfigError(
            f"label_join: labels is {labels!r}; write labels=[Label('order', orders, window='1d')]"
        )
    topics, names = {clicks.topic}, set[str]()
    for label in labels:
        _check_pair(impressions, label.stream, label.columns(on), f"Label {label.name!r}")
        if label.name in names:
            raise ConfigError(f"label_join: two labels have the name {label.name!r}")
        if label.stream.topic in topics:
            raise ConfigError(
                f"Label {label.name!r}: {label.stream.topic} is joined already; a topic is joined "
                "once: write the events of each label to a topic of their own"
            )
        names.add(label.name)
        topics.add(label.stream.topic)
    return tuple(labels)


def _check_pair(impressions: Stream, events: Stream, on: tuple[str, ...], what: str) -> None:
    """Check that events can be joined to impressions. Raises ConfigError."""
    if not on:
        raise ConfigError(f"{what}: name at least one column in on")
    for name in on:
        pair = impressions[name].dtype, events[name].dtype
        if pair[0] != pair[1] or pair[0] not in ("int64", "int32", "string"):
            raise ConfigError(
                f"{what}: {impressions.topic}.{name} is {pair[0]}, {events.topic}.{name} is {pair[1]}, "
                "but both must be the same of int64, int32 and string"
            )
    for stream in (impressions, events):
        if stream.time is None:
            raise ConfigError(f"{what}: {stream.topic} needs a time column")
    if impressions.topic == events.topic:
        raise ConfigError(f"{what}: {impressions.topic} cannot be joined with itself")
    if impressions.columns[impressions.key] != events.columns[events.key]:
        raise ConfigError(
            f"{what}: the keys {impressions.topic}.{impressions.key} and {events.topic}.{events.key} "
            "have different types, so the topics cannot be partitioned alike"
        )
    if impressions.key != events.key and (
        events.key in impressions.columns or impressions.key in events.columns
    ):
        raise ConfigError(
            f"{what}: {impressions.topic} is partitioned by {impressions.key!r} and {events.topic} by "
            f"{events.key!r}, so most {'clicks' if what == 'label_join' else 'of its events'} would not meet "
            "their impressions; write both topics with the same message key, and name it as the key of both"
        )


def labelled(
    stream: Stream,
    *,
    label: str,
    dedup: str | tuple[str, ...] = (),
    window: str | int = "10m",
    max_bytes: str | int = MAX_BYTES,
) -> View:
    """Read a log whose label is a column: a number, 0 or 1, or a bool. Rows with other labels are rejected.

    Args:
        stream: the impressions.
        label: name of the label column.
        dedup: columns that identify an impression, with the stream's key. A row with the values of an earlier
            row does not count within the window.
        window: event time for which a row is known by its `dedup` columns.
        max_bytes: memory of each partition; a quarter is for known rows of 192 bytes, the oldest go first.

    Raises:
        ConfigError: the label is no number or bool, or `dedup` cannot identify a row.

    Example:
        log = labelled(impressions, label="clicked", dedup=("request_id", "ad_id"), window="30m")
    """
    if dtypes.element(stream[label].dtype) not in dtypes.FIXED or dtypes.is_list(stream[label].dtype):
        raise ConfigError(
            f"labelled: {stream.topic}.{label} is {stream[label].dtype}; a label must be a number or bool"
        )
    names = (dedup,) if isinstance(dedup, str) else tuple(dedup)
    if not names:
        return View(stream, label_column=label)
    for name in names:
        if (kind := stream[name].dtype) not in ("int64", "int32", "string"):
            raise ConfigError(f"labelled: dedup {stream.topic}.{name} is {kind}, not int64, int32 or string")
    if stream.time is None:
        raise ConfigError(f"labelled: dedup has a window of time, so {stream.topic} needs a time column")
    window_ms, room = duration_ms(window, "labelled window"), parse_bytes(max_bytes, "labelled max_bytes")
    return View(stream, label_column=label, join_bytes=room, dedup=names, dedup_ms=window_ms)


def recent(item: Expr, n: int, within: str | int, where: Expr | None = None) -> Expr:
    """Behavior history: the last `n` keys of a click column of the same user before the event, oldest first.

    The result has type list<int64>. Repeated keys are kept, and clicks after the event are never seen.

    Args:
        item: column of the click stream: int64, int32 or string.
        n: greatest length, 1 to 100000.
        within: longest time before the event, such as "14d".
        where: condition on the click's columns, such as visits of a minimum length (DICM §7.2); labels do not
            depend on it.

    Example: `recent(clicks.image_id, n=50, within="14d", where=clicks.dwell_ms >= 2000)`.
    """
    ref = item.params[0] if isinstance(item, Expr) and item.op == "column" else None
    if not isinstance(ref, ColumnRef) or ref.table or item.dtype not in ("int64", "int32", "string"):
        raise ConfigError(f"recent: {item} must be an int64, int32 or string column of an event stream")
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= 100_000:
        raise ConfigError(f"recent({ref.name}): n must be between 1 and 100000, not {n!r}")
    within_ms = duration_ms(within, f"recent({ref.name}) within")
    passing = ""
    if where is not None:
        _check_where(where, ref)
        passing = where.meaning
    recent_ref = RecentRef(ref.source, ref.column, n, within_ms, where, passing)
    return Expr("recent", dtype="list<int64>", params=(recent_ref,))


def _check_where(where: object, ref: ColumnRef) -> None:
    if not isinstance(where, Expr) or where.dtype != "bool":
        raise ConfigError(f"recent({ref.name}): where is {where}, but must be a condition, as in column > 3")
    for root in roots_of(where):
        used = root.params[0]
        if not isinstance(used, ColumnRef) or used.source != ref.source:
            raise ConfigError(f"recent({ref.name}): where needs columns of {ref.source} alone, not {root}")
