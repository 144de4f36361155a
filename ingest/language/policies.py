"""Table policies: admission, expiry and eviction of rows (`Pipeline(policies=...)`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from livectr.system.byte_units import parse_bytes
from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

MOST_SIGHTINGS = 127
SECOND_MS = 1000


@dataclass(frozen=True)
class TablePolicy:
    """Admission and eviction of one embedding table; a policy that is not set is off and costs nothing.

    A budget is for the whole table and does not depend on the number of ranks.

    Args:
        admit_after: a key gets a row with the k-th batch in which it occurs (2 to 127). Until then it is
            scored with its initial values and learns nothing. Approximate: a few keys enter early.
        sketch: memory of the counting sketch for `admit_after`; all counts are halved every sketch / 16 bytes
            of sightings.
        max_age: expiry: rows whose last batch is older than this, in event time, are removed, such as "30d".
        max_rows: greatest number of rows after a step; needs `evict`.
        max_bytes: the same as memory of rows and index, such as "8GiB", by a row's largest size.
        evict: "lru" removes the least recently used rows, "lfu" the least frequently used.
        half_life: event time after which a use counts half, for "lfu".

    Raises:
        ConfigError: an argument is wrong, or the arguments do not fit together.

    Example:
        TablePolicy(admit_after=3, max_age="30d", max_bytes="8GiB", evict="lfu")
    """

    admit_after: int | None = None
    sketch: str | int = "8MiB"
    max_age: str | int | None = None
    max_rows: int | None = None
    max_bytes: str | int | None = None
    evict: Literal["lru", "lfu"] | None = None
    half_life: str | int = "1d"

    def __post_init__(self) -> None:
        if self.admit_after is not None and not (
            _is_count(self.admit_after) and 2 <= self.admit_after <= MOST_SIGHTINGS
        ):
            raise ConfigError(
                f"TablePolicy: admit_after is a number of batches from 2 to {MOST_SIGHTINGS}, "
                f"not {self.admit_after!r}; leave it out to store every key"
            )
        if self.sketch_bytes < 64:
            raise ConfigError(f"TablePolicy: sketch={self.sketch!r} is too small; give it 1MiB or more")
        if self.max_rows is not None and not (_is_count(self.max_rows) and self.max_rows >= 1):
            raise ConfigError(f"TablePolicy: max_rows is a number of rows above 0, not {self.max_rows!r}")
        if self.evict not in (None, "lru", "lfu"):
            raise ConfigError(f'TablePolicy: evict is "lru" or "lfu", not {self.evict!r}')
        budget = next((n for n in ("max_rows", "max_bytes") if getattr(self, n) is not None), None)
        if budget is not None and self.evict is None:
            raise ConfigError(
                f'TablePolicy: {budget} needs evict="lru" or evict="lfu": which rows leave a full table'
            )
        if budget is None and self.evict is not None:
            raise ConfigError(
                f"TablePolicy: evict={self.evict!r} needs max_rows or max_bytes: when rows leave"
            )
        if self.max_bytes is not None and parse_bytes(self.max_bytes, "TablePolicy: max_bytes") < 1:
            raise ConfigError(f"TablePolicy: max_bytes is an amount above 0, not {self.max_bytes!r}")
        for name in ("max_age", "half_life"):
            value = getattr(self, name)
            if value is not None and duration_ms(value, f"TablePolicy: {name}") < SECOND_MS:
                raise ConfigError(f'TablePolicy: {name} is a second or more, such as "30d", not {value!r}')

    @property
    def sketch_bytes(self) -> int:
        """Bytes of a sketch on each rank. Raises ConfigError for a text that names no size."""
        return parse_bytes(self.sketch, "TablePolicy: sketch")

    @property
    def max_age_s(self) -> int | None:
        """Maximum age in whole seconds, rounded up."""
        if self.max_age is None:
            return None
        return -(-duration_ms(self.max_age, "TablePolicy: max_age") // SECOND_MS)

    @property
    def half_life_s(self) -> int:
        """Half-life in whole seconds; 0 where uses are not counted."""
        if self.evict != "lfu":
            return 0
        return duration_ms(self.half_life, "TablePolicy: half_life") // SECOND_MS

    @property
    def tracks(self) -> bool:
        """True when the table has to record when its rows were used."""
        return self.max_age is not None or self.evict is not None

    def row_budget(self, row_bytes: int) -> int | None:
        """Greatest number of rows of at most `row_bytes` each; None: no budget.

        Raises:
            ConfigError: the budget is smaller than a row.
        """
        budgets = [] if self.max_rows is None else [self.max_rows]
        if self.max_bytes is not None:
            budgets.append(parse_bytes(self.max_bytes, "TablePolicy: max_bytes") // row_bytes)
            if budgets[-1] < 1:
                raise ConfigError(
                    f"TablePolicy: max_bytes={self.max_bytes!r} is less than a row of {row_bytes} bytes"
                )
        return min(budgets, default=None)


def by_table(
    given: TablePolicy | Mapping[str, TablePolicy] | None, tables: Iterable[str], *, timed: bool
) -> dict[str, TablePolicy]:
    """Table → policy, for the tables that have a policy.

    Args:
        given: a policy for all tables, or policies by table.
        tables: names of all tables.
        timed: the log has event times.

    Raises:
        ConfigError: a table does not exist, or max_age is set for events without time.
    """
    names = list(dict.fromkeys(tables))
    if given is None:
        return {}
    if isinstance(given, TablePolicy):
        policies = dict.fromkeys(names, given)
    elif isinstance(given, Mapping):
        policies = dict(given)
    else:
        raise ConfigError(f"Pipeline: policies is a TablePolicy or {{table: TablePolicy}}, not {given!r}")
    for name, policy in policies.items():
        if name not in names:
            raise ConfigError(f"Pipeline: policies name table {name!r}; tables are {', '.join(names)}")
        if not isinstance(policy, TablePolicy):
            raise ConfigError(f"Pipeline: the policy of table {name!r} is no TablePolicy but {policy!r}")
        if policy.max_age is not None and not timed:
            raise ConfigError(
                f"Pipeline: max_age of table {name!r} needs event times: name the time column of the stream"
            )
    return policies


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
