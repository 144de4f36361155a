"""Admission, expiry and eviction of a rank's rows, as ingest.language.policies.TablePolicy sets them.

    before(times)   set the stamp of all rows that the batch uses: its event time, in seconds
    step            read and learn rows; keys that are not admitted have none (kernels/table/admission.hpp)
    after()         erase expired rows; over the budget, free 1/SLICE of it

The policies depend on the batches alone: on event times, not on the clock; on keys, not on row numbers. So a
resumed run, and a run on another number of ranks, keep the same rows. Erased rows are passed on to
checkpoints and to Redis (DynamicTable.erased).

The event time of a batch is the median of its examples' and never goes back, so that a wrong clock in a
record moves nothing. In a log without event times each batch counts as a second.

A table that is split by key divides its budget evenly among the ranks, and each rank counts the occurrences
of its own keys. The rows that stay then depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import Counter

from livectr.ingest.language.policies import TablePolicy
from livectr.kernels.table.table import DynamicTable, Keys
from livectr.kernels.table.usage import LAST_STAMP
from livectr.system.errors import ConfigError, MismatchError
from livectr.trainer.tables import telemetry

SLICE = 20
"""1/SLICE of a budget is freed at once, since each choice is a pass over all rows."""
SEARCHES = 64
"""Searches for expired rows in a `max_age`: a row is erased by 1 + 1/SEARCHES of it."""

I64 = npt.NDArray[np.int64]
State = dict[str, npt.NDArray[Any]]


class Policies:
    """Policies of one rank's tables; tables without a policy are not touched.

    Args:
        tables: of this rank, empty.
        policies: of all tables (ingest.pipeline.Pipeline.table_policies).
        timed: True if the log has event times.
        erase: function that erases keys of a table in all its tiers, and returns how many were there; None:
            DynamicTable.erase.
        rank: this rank.
        parts: table → number of ranks that its rows are split over; 1 for other tables.

    Raises:
        ConfigError: a budget has no room for a row, or a table with a policy spills to SSD.
    """

    def __init__(
        self,
        tables: Mapping[str, DynamicTable],
        policies: Mapping[str, TablePolicy],
        *,
        timed: bool,
        erase: Callable[[str, Keys], int] | None = None,
        rank: int = 0,
        parts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.now = 0
        self._timed, self._rank = timed, rank
        own = (name for name in tables if name in policies)
        self._kept = {
            name: _PolicedTable.of(tables[name], policies[name], parts.get(name, 1), erase) for name in own
        }

    def __bool__(self) -> bool:
        """True if a table has a policy."""
        return bool(self._kept)

    @property
    def tracked(self) -> frozenset[str]:
        """Tables whose rows' stamps and counts belong into a checkpoint."""
        return frozenset(name for name, kept in self._kept.items() if kept.policy.tracks)

    def before(self, times_ms: I64) -> None:
        """Set the time before a step; times_ms: int64[B] event times of the global batch."""
        if not self._kept:
            return
        if self._timed:
            middle = (len(times_ms) - 1) // 2
            time_s = int(np.partition(times_ms, middle)[middle]) // 1000 if len(times_ms) else 0
            self.now = min(max(self.now, time_s), LAST_STAMP)
        else:
            self.now += 1
        for kept in self._kept.values():
            kept.move_to(self.now)

    def after(self) -> None:
        """Expire and evict own rows after a step, whether it learned or not."""
        for kept in self._kept.values():
            kept.expire(self.now)
            kept.evict()
            kept.account()

    def state(self) -> State:
        """State for a checkpoint, beside the rows."""
        state: State = {}
        for name, kept in self._kept.items():
            state[f"{name}/clock"] = np.array([self.now, kept.looked], np.int64)
            if not kept.table.admits_all:
                cells, seen = kept.table.sketch()
                state[f"{name}/sketch"], state[f"{name}/seen"] = cells, np.array([seen], np.int64)
        return state

    def load(self, states: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
        """Restore from the `state` of all ranks, in their order.

        Raises:
            MismatchError: the state belongs to other policies.
        """
        for name, kept in self._kept.items():
            saved = [state for state in states if f"{name}/clock" in state]
            if len(saved) == kept.parts > 1:
                saved = [saved[self._rank]]
            try:
                now, kept.looked = (int(stamp) for stamp in saved[0][f"{name}/clock"])
                if not kept.table.admits_all:
                    kept.table.load_sketch(
                        *_merged(
                            [(state[f"{name}/sketch"], int(state[f"{name}/seen"][0])) for state in saved]
                        )
                    )
            except (IndexError, KeyError, ValueError) as error:
                raise MismatchError(
                    f"the checkpoint was written without the policies of table {name!r} ({error}); use the "
                    "pipeline that wrote it, or another --checkpoint directory"
                ) from error
            self.now = max(self.now, now)
        for kept in self._kept.values():
            kept.move_to(self.now)


@dataclass
class _PolicedTable:
    """Table under a policy; `looked`: stamp of the last search for expired rows."""

    table: DynamicTable
    policy: TablePolicy
    budget: int | None
    parts: int
    erase: Callable[[str, Keys], int] | None
    looked: int = 0
    counted: tuple[int, int] = (0, 0)

    @staticmethod
    def of(
        table: DynamicTable, policy: TablePolicy, parts: int, erase: Callable[[str, Keys], int] | None
    ) -> _PolicedTable:
        if policy.tracks:
            if table.tracks:
                raise ConfigError(
                    f"table {table.name!r} spills to SSD, which keeps every row: leave out its max_age and "
                    "its budget, or the folder for spilling"
                )
            table.track(policy.half_life_s)
        if policy.admit_after is not None:
            table.admit_after(policy.admit_after, policy.sketch_bytes)
        budget = policy.row_budget(table.row_bytes)
        return _PolicedTable(table, policy, None if budget is None else max(1, budget // parts), parts, erase)

    def move_to(self, now: int) -> None:
        if self.policy.tracks:
            self.table.now(now)

    def expire(self, now: int) -> None:
        age = self.policy.max_age_s
        if age is not None and now - self.looked >= max(1, age // SEARCHES):
            self.looked = now
            self._erase(self.table.older_than(now - age), telemetry.EXPIRED_ROWS)

    def evict(self) -> None:
        rows = len(self.table)
        if self.budget is None or rows <= self.budget:
            return
        choose = self.table.rarest if self.policy.evict == "lfu" else self.table.oldest
        self._erase(choose(rows - self.budget + self.budget // SLICE), telemetry.EVICTED_ROWS)

    def account(self) -> None:
        counts = self.table.admission_counts()
        for metric, now, before in zip(
            (telemetry.ADMITTED_ROWS, telemetry.REFUSED_KEYS), counts, self.counted, strict=True
        ):
            if now > before:
                metric.labels(self.table.name).inc(now - before)
        self.counted = counts

    def _erase(self, keys: Keys, metric: Counter) -> None:
        if len(keys):
            name = self.table.name
            metric.labels(name).inc(self.table.erase(keys) if self.erase is None else self.erase(name, keys))


def _merged(sketches: Sequence[tuple[npt.NDArray[np.uint8], int]]) -> tuple[npt.NDArray[np.uint8], int]:
    """Merge the sketches of all parts after their number changed: cell-wise maximum, then halved.

    It is halved until it is as full as a single sketch.

    All occurrences of a key are in its owner's sketch, so that with the maximum no estimate falls. Counts
    that parts share, from a table that was not split before, are not counted twice.
    """
    if len(sketches) == 1:
        return sketches[0]
    cells = np.max([cells for cells, _ in sketches], axis=0)
    seen = sum(seen for _, seen in sketches)
    while seen >= cells.shape[1] // 2:
        cells, seen = cells // 2, seen // 2
    return cells, seen
