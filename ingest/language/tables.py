"""Look-up tables: their declaration, and the time as of which an event looks up a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from livectr.ingest.language.ages import Aged
from livectr.ingest.language.columns import Columns
from livectr.ingest.language.counts import KEY, ROW, Counted
from livectr.ingest.language.event_times import MAX_AHEAD_MS, EventTime
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.system.byte_units import parse_bytes
from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

AsOf = Literal["event_time", "latest"]
"""See `ingest.language.streams.View.lookup`."""


@dataclass(frozen=True, eq=False, repr=False)
class Table(Columns):
    """Declaration of a look-up table: rows by key, of a compacted topic or of files.

    Args:
        topic: Kafka topic, or folder of files under the source.
        key: column of the key.
        columns: name → type of every column.
        time: column of the time from which a row is valid, int64 in milliseconds since 1970, or an EventTime
            with its unit. Events look up the row that was valid at their own time. None: rows have no time,
            and events look up the latest row.
        max_age: time for which a row is valid after its own, such as "30d", unless a newer row of its key
            comes. Then it leaves memory and Redis, as if it were deleted. None: rows stay.
        max_bytes: memory of the rows, such as "4GiB", with 64 bytes for each key. Beyond it the keys leave
            whose newest row has the oldest time, of equal times those of the least key, until a sixteenth is
            free: as if they were deleted. The table is read with all of its columns. None: no limit.

    Raises:
        ConfigError: an argument is wrong.

    Example:
        ads = Table(
            "ads", key="ad_id", time="changed_ms",
            columns={"ad_id": "int64", "changed_ms": "int64", "category": "string"},
        )
    """

    time_unit: str | None = None
    max_age_ms: int | None = None
    max_bytes: int | None = None

    def __init__(
        self,
        topic: str,
        *,
        key: str,
        columns: Mapping[str, str],
        time: str | EventTime | None = None,
        max_age: str | None = None,
        max_bytes: str | int | None = None,
    ) -> None:
        known = EventTime(time) if isinstance(time, str) else time
        values: dict[str, Any] = dict(topic=topic, key=key, columns=columns, time=None, time_unit=None)
        if known is not None:
            if known.max_disorder_ms or known.max_ahead_ms != MAX_AHEAD_MS:
                raise ConfigError(
                    f"{topic}: the time of a table has no max_ahead or max_disorder; "
                    "each of its rows counts from its own time"
                )
            values |= dict(time=known.column, time_unit=known.unit)
        values["max_age_ms"] = None if max_age is None else duration_ms(max_age, f"{topic}: max_age")
        values["max_bytes"] = None if max_bytes is None else parse_bytes(max_bytes, f"{topic}: max_bytes")
        if values["max_bytes"] == 0:
            raise ConfigError(f"{topic}: max_bytes is an amount above 0, not {max_bytes!r}")
        bounds = {"max_age counts from a row's time": max_age, "max_bytes needs the rows' times": max_bytes}
        for needs in (name for name, bound in bounds.items() if bound is not None and known is None):
            raise ConfigError(f'{topic}: {needs}; name its column, as in time="changed_ms"')
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def narrow(self, names: Iterable[str]) -> Table:
        """The same table with its key, its time and some of the columns."""
        time = None if self.time is None else EventTime(str(self.time), self.time_unit)
        wanted = (self.key, *names, *([] if time is None else [time.column]))
        age = None if self.max_age_ms is None else f"{self.max_age_ms}ms"
        if self.max_bytes is not None:  # they count whole rows, whoever reads them
            wanted = tuple(self.columns)
        columns = {name: self.columns[name] for name in wanted}
        room = self.max_bytes
        return Table(self.topic, key=self.key, columns=columns, time=time, max_age=age, max_bytes=room)

    def _column(self, name: str) -> Expr:
        return column(ColumnRef(self.topic, name, table=True), self.columns[name])


@dataclass(frozen=True, repr=False)
class Lookup:
    """Look-up join: rows of `table` whose key equals the event's column `on`.

    Args:
        as_of: None: the event's time where table and events have times, else the latest row.
        more: further columns, which make a key together with `on`.
        counted: counters whose rows the trainer writes; None: the rows come from a topic.
    """

    table: Table
    on: str
    as_of: Literal["latest"] | None = None
    more: tuple[str, ...] = ()
    counted: Counted | Aged | None = None

    def __repr__(self) -> str:
        # Defaults are left out, so that pipelines keep the fingerprint that they have.
        latest = "" if self.as_of is None else f", as_of={self.as_of!r}"
        counted = "" if self.counted is None else f", counted={self.counted!r}"
        return f"Lookup(table={self.table!r}, on={self.on!r}{latest}{counted})"

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns of the event whose values are the key."""
        return (self.on, *self.more)

    @staticmethod
    def of(table: Table, on: str, as_of: AsOf | None, *, timed: bool) -> Lookup:
        """Check `as_of`.

        Args:
            table: whose rows are looked up.
            on: column of the events whose value is the table's key.
            as_of: choice of the user; None: the default.
            timed: the events have a time.

        Raises:
            ConfigError: there is no such choice, or a time is missing.
        """
        if as_of not in (None, *get_args(AsOf)):
            raise ConfigError(f'look-up of {table.topic}: as_of is {as_of!r}; write "event_time" or "latest"')
        if as_of == "event_time" and table.time is None:
            raise ConfigError(
                f"look-up of {table.topic}: its rows have no time; name the column of their time, "
                f'as in Table({table.topic!r}, time="changed_ms", …), or write as_of="latest"'
            )
        if as_of == "event_time" and not timed:
            raise ConfigError(
                f"look-up of {table.topic}: the events have no time; name its column in their Stream, "
                'or write as_of="latest"'
            )
        bound = next((n for n in ("max_age_ms", "max_bytes") if getattr(table, n) is not None), None)
        if bound is not None and (as_of == "latest" or not timed):
            raise ConfigError(
                f"look-up of {table.topic}: its {bound.removesuffix('_ms')} needs a look-up as of the "
                "events' times; "
                + ("leave out as_of" if timed else "name the column of their time in their Stream")
            )
        return Lookup(table, on, "latest" if as_of == "latest" and table.time is not None else None)

    @staticmethod
    def of_counters(counted: Counted | Aged) -> Lookup:
        """Look-up of the rows of counters by the key of an event."""
        table = Table(counted.topic, key=KEY, columns={KEY: "int64", ROW: "binary"})
        return Lookup(table, counted.by[0], more=counted.by[1:], counted=counted)
