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
from livectr.kernels.stream.history import APPEND, QUERY, Cut, Histories, HistoryTable

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

HISTORY_SCHEMA = pa.schema(
    [("user", pa.int64()), ("items", pa.list_(pa.int64())), ("ts", pa.list_(pa.int64()))]
)


class BehaviorHistories:
    """Behavior histories of one partition's users.

    Roots with the same click column and condition share a table, as long as the longest of them. An
    impression sees the clicks before it in the sequence whose event time is not after its own.

    Args:
        roots: the recent() roots.
        emitted: names of the roots that `advance` returns; None: all.
    """

    def __init__(self, roots: Sequence[Expr], emitted: Collection[str] | None = None) -> None:
        self._emitted = frozenset(root.name for root in roots) if emitted is None else frozenset(emitted)
        self._refs: dict[str, list[RecentRef]] = {}
        for root in roots:
            if isinstance(root.ref, RecentRef):
                self._refs.setdefault(root.ref.history, []).append(root.ref)
        self.tables = {name: HistoryTable(max(ref.n for ref in refs)) for name, refs in self._refs.items()}
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

    def advance(
        self, is_click: npt.NDArray[np.bool_], user: I64, ts: I64, clicks: pa.RecordBatch | None
    ) -> dict[str, pa.Array]:
        """Histories of q impressions, and new clicks added to their users.

        Args:
            is_click: bool[n], clicks and impressions in sequence.
            user: int64[n], user keys.
            ts: int64[n], event times in ms.
            clicks: rows of the clicks among them, in sequence; None without clicks.

        Returns:
            Name of each emitted root → list<int64>[q], newest last.
        """
        columns = {}
        kind = np.where(is_click, np.uint8(APPEND), np.uint8(QUERY))
        for name, known in self._refs.items():
            refs = [ref for ref in known if ref.name in self._emitted]
            item = np.zeros(len(user), np.int64)
            seen = slice(None) if clicks is None or name not in self._filters else np.ones(len(user), bool)
            if clicks is not None:
                item[is_click] = key_of(clicks.column(known[0].column))
                if not isinstance(seen, slice):
                    seen[is_click] = self._filters[name](clicks)
            cuts = [Cut(ref.n, ref.within_ms) for ref in refs]
            answers = self.tables[name].push(kind[seen], user[seen], item[seen], ts[seen], cuts)
            for ref, (offsets, items) in zip(refs, answers, strict=True):
                columns[ref.name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(items))
        return columns

    def mark(self) -> None:
        """Close the current generation of every table; `changed` counts from its number."""
        for table in self.tables.values():
            table.mark()

    def changed(self, since: int) -> dict[str, Histories]:
        """Root name → histories, cut to the root's n, of the users with a click after generation `since`."""
        changed = {}
        for name, refs in self._refs.items():
            histories = self.tables[name].export(since)
            for ref in refs:
                changed[ref.name] = _cut(histories, ref.n)
        return changed

    def export(self) -> dict[str, pa.Table]:
        """Name of each history → all users' behaviors, as HISTORY_SCHEMA."""
        tables = {}
        for name, table in self.tables.items():
            users, lengths, items, ts = table.export()
            offsets = pa.array(offsets_of(lengths, f"behaviors of {name}"))
            lists = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (items, ts)]
            tables[name] = pa.Table.from_arrays([pa.array(users), *lists], schema=HISTORY_SCHEMA)
        return tables

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Load state from `export`."""
        for name, table in self.tables.items():
            saved = tables[name].combine_chunks()
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


def _cut(histories: Histories, n: int) -> Histories:
    """The last n behaviors of each user."""
    users, lengths, items, ts = histories
    if not len(lengths) or lengths.max() <= n:
        return histories
    ends = np.repeat(np.cumsum(lengths), lengths)
    keep = np.arange(len(items)) >= ends - n
    return Histories(users, np.minimum(lengths, n).astype(np.int32), items[keep], ts[keep])


def joined(changes: Iterable[Mapping[str, Histories]]) -> dict[str, Histories]:
    """Histories of several partitions, by name of their recent() root."""
    parts: dict[str, list[Histories]] = {}
    for changed in changes:
        for name, histories in changed.items():
            parts.setdefault(name, []).append(histories)
    return {
        name: Histories(*(np.concatenate(column) for column in zip(*some, strict=True)))
        for name, some in parts.items()
    }
