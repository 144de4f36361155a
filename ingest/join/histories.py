"""Behavior histories: clicks of a user before an impression, for the `recent(…)` roots of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.filters import RowFilter
from livectr.ingest.language.expr import Expr, RecentRef
from livectr.ingest.language.keys import key_of
from livectr.kernels.runtime.offsets import offsets_of
from livectr.kernels.stream.history import APPEND, NEVER, QUERY, Cut, Histories, HistoryTable

I64 = npt.NDArray[np.int64]

LISTED_USERS = 1 << 20
"""Length that a list of expired users may always have."""

HISTORY_SCHEMA = pa.schema(
    [("user", pa.int64()), ("items", pa.list_(pa.int64())), ("ts", pa.list_(pa.int64()))]
)


class BehaviorHistories:
    """Behavior histories of one partition's users.

    Roots with the same click column and condition share a table, as long as the longest of them. An
    impression sees the clicks before it in the sequence whose event time is not after its own.

    Two rules bound memory. Both are functions of the sequence alone: the same over restarts and for any
    number of ranks. A user leaves when event time has passed the last click by the longest `within` and
    `slack_ms`: no impression would see it. Beyond `max_bytes` the users whose last click is the oldest leave.

    Args:
        roots: the recent() roots.
        emitted: names of the roots that `advance` returns; None: all.
        slack_ms: largest delay of an impression behind event time that still sees all of its history.
        spare: clicks of a user that are kept besides: its own, which an impression must not see.
        max_bytes: memory of all tables together, shared out equally.
    """

    def __init__(
        self,
        roots: Sequence[Expr],
        emitted: Collection[str] | None = None,
        *,
        slack_ms: int = 0,
        spare: int = 0,
        max_bytes: int = NEVER,
    ) -> None:
        emitted = frozenset(root.name for root in roots) if emitted is None else frozenset(emitted)
        self._refs: dict[str, list[RecentRef]] = {}
        for root in roots:
            if isinstance(root.ref, RecentRef):
                self._refs.setdefault(root.ref.history, []).append(root.ref)
        self._cuts = {  # name of a history → name of an emitted root → its part of the history
            name: {ref.name: Cut(ref.n, ref.within_ms) for ref in refs if ref.name in emitted}
            for name, refs in self._refs.items()
        }
        self.tables = {
            name: HistoryTable(
                max(ref.n for ref in refs) + spare,
                horizon_ms=min(NEVER, max(ref.within_ms for ref in refs) + slack_ms),
                max_bytes=max_bytes // len(self._refs),
            )
            for name, refs in self._refs.items()
        }
        conditions = {name: refs[0].where for name, refs in self._refs.items()}
        self._filters = {name: RowFilter(where) for name, where in conditions.items() if where is not None}

    def compile(self) -> None:
        """Compile the conditions now, not with the first clicks."""
        for condition in self._filters.values():
            condition.compile()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kept histories (RecentRef.history)."""
        return tuple(self.tables)

    @property
    def users(self) -> int:
        """Histories that are kept; a user has one in each table."""
        return sum(map(len, self.tables.values()))

    @property
    def bytes(self) -> int:
        """Memory of the histories."""
        return sum(table.bytes for table in self.tables.values())

    @property
    def expired(self) -> int:
        """Histories of this process that expired: they are older than any root's `within`."""
        return sum(table.expired for table in self.tables.values())

    @property
    def evicted(self) -> int:
        """Histories of this process that were evicted for lack of room."""
        return sum(table.evicted for table in self.tables.values())

    def advance(
        self,
        is_click: npt.NDArray[np.bool_],
        user: I64,
        ts: I64,
        clicks: pa.RecordBatch | None,
        *,
        mark: I64 | None = None,
    ) -> dict[str, pa.Array]:
        """Histories of q impressions, and new clicks added to their users.

        Args:
            is_click: bool[n], clicks and impressions in sequence.
            user: int64[n], user keys.
            ts: int64[n], event times in ms.
            clicks: rows of the clicks among them, in sequence; None without clicks.
            mark: int64[n], event time of the sequence, which never falls; None: no time passes.

        Returns:
            Name of each emitted root → list<int64>[q], newest last.
        """
        columns = {}
        kind = np.where(is_click, np.uint8(APPEND), np.uint8(QUERY))
        for name, known in self._refs.items():
            item = np.zeros(len(user), np.int64)
            seen = slice(None) if clicks is None or name not in self._filters else np.ones(len(user), bool)
            if clicks is not None:
                item[is_click] = key_of(clicks.column(known[0].column))
                if not isinstance(seen, slice):
                    seen[is_click] = self._filters[name](clicks)
            cuts = [*self._cuts[name].values()]
            marks = None if mark is None else mark[seen]
            answers = self.tables[name].push(kind[seen], user[seen], item[seen], ts[seen], cuts, mark=marks)
            for root, (offsets, items) in zip(self._cuts[name], answers, strict=True):
                columns[root] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(items))
        return columns

    def mark(self) -> None:
        """Close the current generation of every table; `changed` counts from its number."""
        for table in self.tables.values():
            table.mark()

    def track_left(self) -> None:
        """List the users that leave from now on, until `forget_left`."""
        for table in self.tables.values():
            table.track()

    def forget_left(self, until: int) -> None:
        """Drop the users that expired up to generation `until` from the lists."""
        for table in self.tables.values():
            table.forget_left(until)

    @property
    def overgrown(self) -> bool:
        """True when a list of expired users is longer than there are users."""
        return any(table.listed > max(LISTED_USERS, len(table)) for table in self.tables.values())

    def touch(self, root: str, users: I64) -> None:
        """List the histories of those of users int64[n] that have any as changed.

        Args:
            root: name of a root.
            users: int64[n].
        """
        for name, refs in self._refs.items():
            if root in {ref.name for ref in refs}:
                self.tables[name].touch(users)

    def changed(self, since: int) -> dict[str, Histories]:
        """Root name → histories, cut to the root's n, of the users with a click after generation `since`.

        With `track_left`, users that expired after it are included, with length 0.
        """
        changed = {}
        for name, refs in self._refs.items():
            histories = self.tables[name].export(since)
            for ref in refs:
                changed[ref.name] = _cut(histories, ref.n)
        return changed

    def export(self) -> dict[str, pa.Table]:
        """Name of each history → all users' behaviors, as HISTORY_SCHEMA."""
        return {name: as_table(table.export()) for name, table in self.tables.items()}

    def changes(self, since: int) -> dict[str, Histories]:
        """Name of each history → users with a click after generation `since`; 0: all.

        With `track_left`, users that expired after it are included, with length 0.
        """
        return {name: table.export(since) for name, table in self.tables.items()}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Load state from `export`; a history without a table has no users."""
        for name, rows in tables.items():
            table, saved = self.tables[name], rows.combine_chunks()
            if not len(saved):
                continue
            users, items, ts = (saved.column(i).chunk(0) for i in range(3))
            table.assign(
                Histories(
                    np.array(users.to_numpy()),
                    np.diff(items.offsets.to_numpy()).astype(np.int32),
                    np.array(items.flatten().to_numpy()),
                    np.array(ts.flatten().to_numpy()),
                )
            )


def as_table(histories: Histories) -> pa.Table:
    """Histories as rows of HISTORY_SCHEMA."""
    users, lengths, items, ts = histories
    offsets = pa.array(offsets_of(lengths, "behaviors"))
    lists = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (items, ts)]
    return pa.Table.from_arrays([pa.array(users), *lists], schema=HISTORY_SCHEMA)


def changes_of(partitions: Iterable[BehaviorHistories], since: int) -> dict[str, Histories]:
    """Histories of all partitions that changed after generation `since`, by root name; see `changed`."""
    changed: dict[str, list[Histories]] = {}
    for behaviors in partitions:
        for name, histories in behaviors.changed(since).items():
            changed.setdefault(name, []).append(histories)
    return {
        name: Histories(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        for name, parts in changed.items()
    }


def _cut(histories: Histories, n: int) -> Histories:
    """The last n behaviors of each user."""
    users, lengths, items, ts = histories
    if not len(lengths) or lengths.max() <= n:
        return histories
    ends = np.repeat(np.cumsum(lengths), lengths)
    keep = np.arange(len(items)) >= ends - n
    return Histories(users, np.minimum(lengths, n).astype(np.int32), items[keep], ts[keep])
