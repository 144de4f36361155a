"""What a pipeline reads: event streams, look-up tables, and the view that joins them (FeatureBox §3).

These are declarations; `ingest.join.examples` carries them out. Columns are attributes:
`impressions.user_id` is
an expression. A column that is called like an attribute of the class (`key`, `time`, …) is
`impressions["key"]`.

    Stream --label_join/labelled--> View --lookup--> View        recent(stream.column): a user's history
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from livectr.ingest.language import dtypes, event_times
from livectr.ingest.language.byte_units import parse_bytes
from livectr.ingest.language.durations import duration_ms
from livectr.ingest.language.expr import ColumnRef, Expr, RecentRef, column
from livectr.kernels.errors import ConfigError
from livectr.kernels.stream.join import MAX_BYTES

MAX_AHEAD_MS = 60_000


class UnknownColumnError(ConfigError, AttributeError):
    """A column that was not declared (an AttributeError too, so that hasattr() works)."""


@dataclass(frozen=True, eq=False)
class _Columns:
    """Columns as attributes, shared by streams and tables."""

    topic: str
    key: str
    columns: Mapping[str, str]
    time: str | None = None

    def __post_init__(self) -> None:
        if not self.topic:
            raise ConfigError(f"{type(self).__name__}: the topic has no name")
        object.__setattr__(self, "columns", dict(self.columns))
        for name, dtype in self.columns.items():
            dtypes.check_dtype(dtype, f"{self.topic}.{name}")
        self._need("key", self.key, ("int64", "int32", "string"))
        if self.time is not None:
            self._need("time", self.time, ("int64",))

    def _need(self, what: str, name: str, allowed: tuple[str, ...]) -> None:
        if name not in self.columns:
            raise UnknownColumnError(f"{self.topic}: {what} column {name!r} is not declared; {self._known()}")
        if self.columns[name] not in allowed:
            kinds = " or ".join(allowed)
            raise ConfigError(
                f"{self.topic}: {what} column {name!r} is {self.columns[name]}; it must be {kinds}"
            )

    def _settings(self) -> list[str]:
        return [name for name in self.__dataclass_fields__ if name != "where"]

    def _known(self) -> str:
        return f"its columns are {', '.join(self.columns)}"

    def __getitem__(self, name: str) -> Expr:
        if name not in self.columns:
            raise UnknownColumnError(f"{self.topic} has no column {name!r}; {self._known()}")
        if self.columns[name] == "image":
            raise ConfigError(
                f"{self.topic}.{name} cannot be a feature: images come with the image models; use an image id"
            )
        return self._column(name)

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def _column(self, name: str) -> Expr:
        raise NotImplementedError

    def __repr__(self) -> str:
        # A function of every setting: fingerprints are made of it.
        values = {name: getattr(self, name) for name in self._settings()}
        if values.get("time_unit") in (None, "ms"):  # the same milliseconds
            values.pop("time_unit", None)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


@dataclass(frozen=True, eq=False, repr=False)
class Stream(_Columns):
    """A log of events.

    topic        Kafka topic, or folder of files under the source
    columns      name → type of every column that the log may be asked for
    key          the column that partitions the topic (the user)
    time         event time, int64 since 1970; None: the order of the log is all there is
    time_unit    its unit in the log: "ms", "s", "us" or "ns"; features and requests see milliseconds. None:
                 milliseconds, and numbers that are likely in another unit are refused
                 (ingest.language.event_times)
    json_fields  new column → "column.path.to.field" inside a string column of JSON; its type is in `columns`
    fill         column → value for nulls; without it numbers are 0, strings "", bools false, lists empty
    where        a function of this stream to a bool expression over its columns; other rows are left out
    max_ahead    how far a time may lie ahead of what the broker, or the other users of the log, say; a record
                 with a later one is a dead letter
    max_disorder how late a record may come and still have its right place: marks of time lag by it
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
        time: str | None = None,
        json_fields: Mapping[str, str] | None = None,
        fill: Mapping[str, Any] | None = None,
        where: Callable[[Stream], Expr] | None = None,
        time_unit: str | None = None,
        max_ahead: str | int = MAX_AHEAD_MS,
        max_disorder: str | int = 0,
    ) -> None:
        values = dict(topic=topic, key=key, columns=columns, time=time, where=where, time_unit=time_unit)
        durations = dict(
            max_ahead_ms=duration_ms(max_ahead, f"{topic}: max_ahead"),
            max_disorder_ms=duration_ms(max_disorder, f"{topic}: max_disorder") if max_disorder else 0,
        )
        for name, value in {
            **values,
            **durations,
            "json_fields": dict(json_fields or {}),
            "fill": dict(fill or {}),
        }.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time_unit not in (None, *event_times.UNITS) or (self.time_unit and self.time is None):
            raise ConfigError(
                f"{self.topic}: time_unit is {self.time_unit!r}; write one of "
                f"{', '.join(event_times.UNITS)} beside a time column"
            )
        if self.max_disorder_ms and self.time is None:
            raise ConfigError(f"{self.topic}: max_disorder needs a time column; name it with time=")
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
        """The bool expression that a row must satisfy, or None."""
        return None if self.where is None else self.where(self)

    def _column(self, name: str) -> Expr:
        # The fill travels with the node, so that a serving request's missing value becomes the same feature.
        return column(ColumnRef(self.topic, name, fill=self.fill.get(name)), self.columns[name])

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, where={self.filter})"

    def _settings(self) -> list[str]:
        # Left out while they are the usual ones, so that the logs' names stay what they are.
        usual = {
            name: self.__dataclass_fields__[name].default for name in ("max_ahead_ms", "max_disorder_ms")
        }
        return [
            name for name in super()._settings() if name not in usual or getattr(self, name) != usual[name]
        ]


@dataclass(frozen=True, eq=False, repr=False)
class Table(_Columns):
    """A look-up table: the latest row of each key of a compacted topic or of files. `time` is for display
    only."""

    def __init__(self, topic: str, *, key: str, columns: Mapping[str, str], time: str | None = None) -> None:
        for name, value in dict(topic=topic, key=key, columns=columns, time=time).items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def _column(self, name: str) -> Expr:
        return column(ColumnRef(self.topic, name, table=True), self.columns[name])


@dataclass(frozen=True)
class Lookup:
    """Rows of `table` beside each event: the table's key equals the event's column `on`."""

    table: Table
    on: str


@dataclass(frozen=True, repr=False)
class View:
    """Labelled impressions with their look-ups. Its attributes are the columns of the impression stream.

    clicks, on, window_ms, correct_late   of a label join (clicks is None for a stream whose label is a
                                          column)
    label                                 the label column, or None for a label join
    join_bytes                            memory of a label join, of each partition
    """

    impressions: Stream
    clicks: Stream | None = None
    on: tuple[str, ...] = ()
    window_ms: int = 0
    correct_late: bool = False
    label: str | None = None
    lookups: tuple[Lookup, ...] = ()
    join_bytes: int = MAX_BYTES

    def lookup(self, table: Table, on: str | None = None) -> View:
        """Looks up `table` by the impression column `on` (default: the column that is named like the table's
        key)."""
        on = table.key if on is None else on
        kind, wanted = self.impressions[on].dtype, table.columns[table.key]
        if kind != wanted and not {kind, wanted} <= {"int32", "int64"}:
            raise ConfigError(
                f"look-up of {table.topic}: {self.impressions.topic}.{on} is {kind}, "
                f"but {table.topic}.{table.key} is {wanted}"
            )
        if any(entry.table.topic == table.topic for entry in self.lookups):
            raise ConfigError(f"{table.topic} is looked up twice; a table is looked up by one column")
        return replace(self, lookups=(*self.lookups, Lookup(table, on)))

    def __getitem__(self, name: str) -> Expr:
        return self.impressions[name]

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.impressions[name]

    def __repr__(self) -> str:
        # As in a stream, what is usual has no part in the fingerprint.
        names = [
            name for name in self.__dataclass_fields__ if name != "join_bytes" or self.join_bytes != MAX_BYTES
        ]
        return f"View({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def label_join(
    impressions: Stream,
    clicks: Stream,
    *,
    on: str | tuple[str, ...],
    window: str | int,
    correct_late: bool = False,
    max_bytes: str | int = MAX_BYTES,
) -> View:
    """Impressions labelled 1 when a click with equal `on` columns follows within `window` of event time, else
    0.

    Both topics must be partitioned alike by their key columns (the user), so that a pair meets on one rank.
    With `correct_late`, a click after the window leaves as a correction example.

    max_bytes: memory of each partition's join ("1GiB"). An impression or a lone click for which it has no
    room is a dead letter. Of each partition, so that what is learned does not depend on the number of ranks.
    """
    names = (on,) if isinstance(on, str) else tuple(on)
    if not names:
        raise ConfigError("label_join: name at least one column in on")
    for name in names:
        pair = impressions[name].dtype, clicks[name].dtype
        if pair[0] != pair[1] or pair[0] not in ("int64", "int32", "string"):
            raise ConfigError(
                f"label_join: {impressions.topic}.{name} is {pair[0]}, {clicks.topic}.{name} is {pair[1]}, "
                "but both must be the same of int64, int32 and string"
            )
    for stream in (impressions, clicks):
        if stream.time is None:
            raise ConfigError(f"label_join: {stream.topic} needs a time column")
    if impressions.topic == clicks.topic:
        raise ConfigError(f"label_join: {impressions.topic} cannot be joined with itself")
    if impressions.columns[impressions.key] != clicks.columns[clicks.key]:
        raise ConfigError(
            f"label_join: the keys {impressions.topic}.{impressions.key} and {clicks.topic}.{clicks.key} "
            "have different types, so the topics cannot be partitioned alike"
        )
    return View(
        impressions,
        clicks,
        on=names,
        window_ms=duration_ms(window, "label_join window"),
        correct_late=correct_late,
        join_bytes=parse_bytes(max_bytes, "label_join max_bytes"),
    )


def labelled(stream: Stream, *, label: str) -> View:
    """A log whose label is a column: a number, 0 or 1, or a bool. Rows with other labels are refused."""
    if dtypes.element(stream[label].dtype) not in dtypes.FIXED or dtypes.is_list(stream[label].dtype):
        raise ConfigError(
            f"labelled: {stream.topic}.{label} is {stream[label].dtype}; a label must be a number or bool"
        )
    return View(stream, label=label)


def recent(item: Expr, n: int, within: str | int, where: Expr | None = None) -> Expr:
    """Keys of the last `n` values of a stream's column that the user had within the duration `within` before
    the event, oldest first, repeats kept; never from the event's future. A root of type list<int64>.

    where: only of events that pass, such as clicks with a visit that lasted (DICM §7.2):
    `recent(clicks.image_id, n=50, within="14d", where=clicks.dwell_ms >= 2000)`. Labels are not affected.
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
        passing = where.digest
    found = RecentRef(ref.source, ref.column, n, within_ms, where, passing)
    return Expr("recent", dtype="list<int64>", params=(found,))


def _check_where(where: object, ref: ColumnRef) -> None:
    if not isinstance(where, Expr) or where.dtype != "bool":
        raise ConfigError(f"recent({ref.name}): where is {where}, but must be a condition, as in column > 3")
    for root in roots_of(where):
        one = root.params[0]
        if not isinstance(one, ColumnRef) or one.source != ref.source:
            raise ConfigError(f"recent({ref.name}): where needs columns of {ref.source} alone, not {root}")


def roots_of(*exprs: Expr) -> tuple[Expr, ...]:
    """The roots that expressions depend on, once per name, in order of first appearance."""
    found: dict[str, Expr] = {}
    for node in _below(*exprs):
        if node.is_root:
            found.setdefault(node.name, node)
    return tuple(found.values())


def needs_statistics(*exprs: Expr) -> bool:
    """Whether expressions depend on running statistics: their values then depend on what was trained."""
    return any(node.device is not None and node.device.statistic is not None for node in _below(*exprs))


def _below(*exprs: Expr) -> Iterator[Expr]:
    """The nodes that expressions are made of, themselves too, in order of first appearance."""
    seen: set[int] = set()
    stack = list(reversed(exprs))
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(reversed(node.inputs))
