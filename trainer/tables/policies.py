"""What enters and leaves a rank's tables: admission, expiry, eviction (as
ingest.language.policies.TablePolicy says).

    before(times)   the stamp of everything that the batch uses: its event time, in seconds
    step            reads and learns rows; keys that are not admitted have none (kernels/table/admission.hpp)
    after()         rows too old leave; where a budget is passed, a SLICE-th of it is freed

All of it is a function of the batches: of event times, not of the clock; of keys, not of row numbers. So a
resumed run, and one on another number of ranks, keeps the same rows. Rows that leave are told to checkpoints
and to Redis (DynamicTable.erased).

The event time of a batch is the median of its examples' and never goes back: a wrong clock in one record
moves nothing. In a log without event times each batch counts as a second.

A table that is split by key over the ranks shares its budget evenly, and each rank counts the sightings of
its own keys: what stays then depends on the number of ranks.
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
from livectr.kernels.errors import ConfigError, MismatchError
from livectr.kernels.table.table import DynamicTable, Keys
from livectr.kernels.table.usage import LAST_STAMP
from livectr.trainer import telemetry

SLICE = 20
"""Part of a budget that is freed at once: to choose rows is a pass over all of them."""
LOOKS = 64
"""How often in a `max_age` old rows are looked for: a row leaves by 1 + 1/LOOKS of it."""

I64 = npt.NDArray[np.int64]
State = dict[str, npt.NDArray[Any]]


class Policies:
    """The policies of one rank's tables; tables without one are left alone and cost nothing.

    Args:
        tables: this rank's, empty.
        policies: of all tables (ingest.pipeline.Pipeline.table_policies).
        timed: whether the log has event times.
        erase: what forgets keys of a table, and returns how many were there; None: DynamicTable.erase. Where
            rows lie on a GPU too, both places must.
        rank, parts: this rank, and over how many ranks a table's rows are, where they are split by key.

    Raises:
        ConfigError: a budget without room for a row, or a policy for a table that spills to SSD.
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
        self._kept = {name: _Kept.of(tables[name], policies[name], parts.get(name, 1), erase) for name in own}

    @property
    def tracked(self) -> frozenset[str]:
        """Tables whose rows' use must come back with them."""
        return frozenset(name for name, kept in self._kept.items() if kept.policy.tracks)

    def before(self, times_ms: I64) -> None:
        """Before a step: int64[B] event times of the whole batch, the same on every rank."""
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
        """After a step, whether it learned or not; on every rank for its own tables."""
        for kept in self._kept.values():
            kept.expire(self.now)
            kept.evict()
            kept.account()

    def state(self) -> State:
        """What a checkpoint holds beside the rows."""
        state: State = {}
        for name, kept in self._kept.items():
            state[f"{name}/clock"] = np.array([self.now, kept.looked], np.int64)
            if not kept.table.admits_all:
                cells, seen = kept.table.sketch()
                state[f"{name}/sketch"], state[f"{name}/seen"] = cells, np.array([seen], np.int64)
        return state

    def load(self, states: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
        """Go on from the ranks' `state`, in their order. Raises MismatchError for that of other policies."""
        for name, kept in self._kept.items():
            found = [state for state in states if f"{name}/clock" in state]
            if len(found) == kept.parts > 1:
                found = [found[self._rank]]
            try:
                now, kept.looked = (int(stamp) for stamp in found[0][f"{name}/clock"])
                if not kept.table.admits_all:
                    kept.table.load_sketch(
                        *_merged(
                            [(state[f"{name}/sketch"], int(state[f"{name}/seen"][0])) for state in found]
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
class _Kept:
    """A table under a policy. looked: the stamp when old rows were looked for."""

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
    ) -> _Kept:
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
        return _Kept(table, policy, None if budget is None else max(1, budget // parts), parts, erase)

    def move_to(self, now: int) -> None:
        if self.policy.tracks:
            self.table.now(now)

    def expire(self, now: int) -> None:
        age = self.policy.max_age_s
        if age is not None and now - self.looked >= max(1, age // LOOKS):
            self.looked = now
            self._drop(self.table.older_than(now - age), telemetry.EXPIRED_ROWS)

    def evict(self) -> None:
        rows = len(self.table)
        if self.budget is None or rows <= self.budget:
            return
        choose = self.table.rarest if self.policy.evict == "lfu" else self.table.oldest
        self._drop(choose(rows - self.budget + self.budget // SLICE), telemetry.EVICTED_ROWS)

    def account(self) -> None:
        counts = self.table.admission_counts()
        for metric, now, before in zip(
            (telemetry.ADMITTED_ROWS, telemetry.REFUSED_KEYS), counts, self.counted, strict=True
        ):
            if now > before:
                metric.labels(self.table.name).inc(now - before)
        self.counted = counts

    def _drop(self, keys: Keys, metric: Counter) -> None:
        if len(keys):
            name = self.table.name
            metric.labels(name).inc(self.table.erase(keys) if self.erase is None else self.erase(name, keys))


def _merged(sketches: Sequence[tuple[npt.NDArray[np.uint8], int]]) -> tuple[npt.NDArray[np.uint8], int]:
    """The sketch of parts whose number changed, halved until it is as full as one.

    A cell is the largest of the parts': all sightings of a key are in its owner's sketch, so that no estimate
    falls, and what parts have in common, from a table that was whole before, is not counted again.
    """
    if len(sketches) == 1:
        return sketches[0]
    cells = np.max([cells for cells, _ in sketches], axis=0)
    seen = sum(seen for _, seen in sketches)
    while seen >= cells.shape[1] // 2:
        cells, seen = cells // 2, seen // 2
    return cells, seen
