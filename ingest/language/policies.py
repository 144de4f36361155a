"""Which rows a table takes in, and which it lets go: what a pipeline file says (`Pipeline(policies=...)`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from livectr.ingest.language.byte_units import parse_bytes
from livectr.ingest.language.durations import duration_ms
from livectr.kernels.errors import ConfigError

MOST_SIGHTINGS = 127
SECOND_MS = 1000


@dataclass(frozen=True)
class TablePolicy:
    """The policies of one embedding table; each is off unless it is named, and costs nothing then.

    A budget is one table's, wherever it lies: it does not depend on the number of ranks.

    admit_after   a key is stored with the k-th batch that it occurs in (2 to 127); until then it is scored
                  with its initial values and learns nothing. Approximate: a few keys enter early
    sketch        memory of the counts behind it; all counts are halved every sketch / 16 bytes of sightings
    max_age       rows whose last batch is older than this, in event time, leave: "30d"
    max_rows      at most so many rows after a step; `evict` says which leave
    max_bytes     the same as an amount of memory ("8GiB") for rows and index, by a row's largest size
    evict         "lru": the rows that were used longest ago; "lfu": the least often used ones
    half_life     event time after which a use counts half, for "lfu"

    Raises ConfigError, one sentence, for what cannot work.
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
        return parse_bytes(self.sketch, "TablePolicy: sketch")

    @property
    def max_age_s(self) -> int | None:
        """Whole seconds, rounded up."""
        if self.max_age is None:
            return None
        return -(-duration_ms(self.max_age, "TablePolicy: max_age") // SECOND_MS)

    @property
    def half_life_s(self) -> int:
        """Whole seconds; 0 where uses need not be counted."""
        if self.evict != "lfu":
            return 0
        return duration_ms(self.half_life, "TablePolicy: half_life") // SECOND_MS

    @property
    def tracks(self) -> bool:
        """Whether it must be known when rows were used."""
        return self.max_age is not None or self.evict is not None

    def row_budget(self, row_bytes: int) -> int | None:
        """Most rows of at most `row_bytes` each; None: no budget. Raises ConfigError where none fits."""
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
    """Table → policy, of those that have one. `timed`: whether the log has event times.

    Raises ConfigError for a table that does not exist, and for a max_age of events without time.
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
