"""Snapshot of a version: copies of this rank's rows, values and weights at a step boundary.

A version holds the champion and the pre-rank model: their values of a row, and their weights. Of the other
contenders it holds the content vectors, which a server loads for whichever is the champion, and of shadows
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import safetensors.torch
import torch

from livectr.ingest.extract.extractor import Extract
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.join.examples import ExampleSource
from livectr.ingest.join.histories import BehaviorHistories
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.language.content import content_of
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.stream.history import Histories
from livectr.kernels.table.layout import Segment
from livectr.kernels.table.table import DynamicTable
from livectr.models.base import served_roles
from livectr.store.layout import (
    CONTENT,
    FEATURES,
    HISTORY,
    LOOKUP,
    Keyspace,
    buckets_of,
    encode_history,
    encode_lookup_row,
)
from livectr.trainer import telemetry
from livectr.trainer.comm.control import Control
from livectr.trainer.content.item_refresh import ItemRefresh
from livectr.trainer.content.precompute import ContentPrecompute, Precompute
from livectr.trainer.content.refresh import ContentRefresh
from livectr.trainer.des.item_vectors import ItemCopy
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.spool import CopyAhead, Spool
from livectr.trainer.publish.version import ItemBlobs, Items, VersionSnapshot, is_served

if TYPE_CHECKING:
    from livectr.trainer.publish.store_types import Values

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

LISTED_ROWS = 1_000_000
"""Changes of a table that may be listed, however few rows it has."""
LISTED_SHARE = 1.25
"""Changes of a table that may be listed, of its rows. Compacted lists name each row once at most: they grow
by a quarter of the rows until the next time; erased keys come on top.
"""


def served_columns(segments: Sequence[Segment], champion: str) -> slice | I64:
    """Columns of a table row that are published: a slice where they lie together."""
    places = np.repeat([is_served(s.name, champion) for s in segments], [s.dim for s in segments])
    columns: I64 = np.flatnonzero(places)
    first, last = int(columns[0]), int(columns[-1])
    return slice(first, last + 1) if last - first + 1 == len(columns) else columns


@dataclass(frozen=True)
class Boundary:
    """Marks of a step boundary, which divide earlier from later changes.

    Attributes:
        tables: embedding table → mark.
        histories: mark of the behavior histories.
        lookup_rows: mark of the look-up rows; 0: every row counts as changed.
    """

    tables: dict[str, int]
    histories: int
    lookup_rows: int

    @staticmethod
    def mark(
        step: DesStep, source: ExampleSource, others: Mapping[str, DynamicTable] = MappingProxyType({})
    ) -> Boundary:
        """Mark the present, after rows on the GPU were copied to the host's tables.

        Args:
            others: tables that are not published, by their names in a checkpoint.
        """
        step.storage.flush()
        tables = {name: table.mark() for name, table in {**step.tables, **others}.items()}
        mark = source.mark()
        return Boundary(tables, mark, mark)


@dataclass(frozen=True)
class Left:
    """Expired users and keys of look-up tables, which a version removes."""

    behaviors: Sequence[BehaviorHistories] = ()
    lookups: Sequence[LookupTable] = ()

    @staticmethod
    def of(source: ExampleSource) -> Left:
        """Lists of a rank's source."""
        return Left(source.behaviors, list(source.tables.values()))

    def track(self, *, saved: bool, published: bool) -> None:
        """List who leaves from now on, as far as checkpoints (users alone) and versions have to know."""
        for behaviors in self.behaviors if saved else ():
            behaviors.track_left()
        for lookup in self.lookups if published else ():
            lookup.track_left()

    def forget(self, needed: Sequence[Boundary], published: Sequence[Boundary]) -> None:
        """Drop the users and keys that expired before all of some moments from the lists.

        Args:
            needed: moments of checkpoints and versions whose next needs the lists; one at least.
            published: of versions alone; one at least.
        """
        for behaviors in self.behaviors:
            behaviors.forget_left(min(held.histories for held in needed))
        for lookup in self.lookups:
            lookup.forget_left(min(held.lookup_rows for held in published))

    @property
    def overgrown(self) -> bool:
        """True when a list names more users, or keys, than there are."""
        many = any(lookup.overgrown for lookup in self.lookups)
        return many or any(behaviors.overgrown for behaviors in self.behaviors)


def overgrown(tables: Iterable[DynamicTable]) -> bool:
    """Compact lists of changes that are longer than they may be; tell if that does not help."""
    for table in tables:
        most = LISTED_SHARE * max(LISTED_ROWS, len(table))
        if table.listed > most:
            table.compact()
            if table.listed > most:
                return True
    return False


def _sum(control: Control, part: torch.Tensor) -> torch.Tensor:
    """Sum over all ranks, from the publisher's thread."""
    telemetry.COLLECTIVE_BYTES.labels("items").inc(2 * (control.world - 1) * part.nbytes // control.world)
    return control.all_reduce(part)


def _vectors(copied: ItemCopy, control: Control) -> F32:
    """Vectors f32[n, out] of copied items. Collective."""
    return copied.vectors(partial(_sum, control))


@dataclass(frozen=True)
class Snapshotter:
    """Copies a rank's share of versions.

    Args:
        extract: the pipeline's plan, for the vectors of items.
        statistics: running statistics at this step boundary.
        space: names of keys in Redis.
        champion: role of the ranking model that is published.
        refreshes: content → its refresh; of other content, all vectors are computed.
        now_ms: event time of this step boundary.
        item_refresh: refresh of the item vectors; None: all are computed.
        first_ms: event time of this process's first example; 0 before it.
        copied: rows of a complete version that were copied ahead.
    """

    pipeline: Pipeline
    step: DesStep
    source: ExampleSource
    extract: Extract
    statistics: Statistics
    control: Control
    space: Keyspace
    champion: str = "rank"
    refreshes: Mapping[str, ContentRefresh] = field(default_factory=dict)
    now_ms: int = 0
    item_refresh: ItemRefresh | None = None
    first_ms: int = 0
    copied: CopyAhead | None = None

    def ahead(self, boundary: Boundary) -> CopyAhead | None:
        """Begin to copy all rows ahead of a complete version; None: rows have no lasting numbers (SSD)."""
        if not all(table.sweeps for table in self.step.tables.values()):
            return None
        columns = served_columns(self.step.layout.segments, self.champion)
        return CopyAhead(self.step.tables, boundary.tables, columns, self.champion)

    def take(self, steps: int, since: Boundary | None) -> VersionSnapshot:
        """Copy changes after `since`, or everything (None). Collective.

        Args:
            steps: learned so far.
        """
        self.step.storage.flush()
        histories = self.source.history_changes(since.histories if since else 0)
        kept = histories if since is None else None  # whom to sweep; also by the first version of a process
        if since is not None and not since.lookup_rows and self._has_values:
            kept = self.source.history_changes(0)
        rows, spool = self._rows(since)
        erased = (
            {name: table.erased(since.tables[name]) for name, table in self.step.tables.items()}
            if since
            else {}
        )
        lookup_rows = since.lookup_rows if since else 0
        return VersionSnapshot(
            step=steps,
            rows=rows,
            table_rows={name: len(table) for name, table in self.step.tables.items()},
            dense=safetensors.torch.save({**self._weights(), **self._statistics()}),
            values=[*self._lookup_rows(lookup_rows), *self._histories(histories)],
            items=self._items(since),
            erased={name: keys for name, keys in erased.items() if len(keys)},
            content=self._content(whole=since is None),
            spool=spool,
            champion=self.champion,
            kept=self._kept(kept) if kept is not None else None,
        )

    def keys_since(self, since: Boundary) -> dict[str, I64]:
        """Keys of this rank's rows and users that changed or left after `since`, by table; histories have the
        prefix `store.layout.HISTORY`.
        """
        found = {}
        for name, table in self._tables:
            mark = since.tables[name]
            changed, erased = table.changed_keys(mark), table.erased(mark)
            found[name] = np.concatenate([changed, erased]) if len(erased) else changed
        for name, histories in self.source.history_changes(since.histories).items():
            found[HISTORY + name] = histories.users
        return {name: keys for name, keys in found.items() if len(keys)}

    @property
    def _has_values(self) -> bool:
        """Tell if versions have look-up rows or histories."""
        return bool(self.pipeline.tables or self.pipeline.history_roots)

    def _rows(self, since: Boundary | None) -> tuple[dict[str, tuple[I64, F32]], Spool | CopyAhead | None]:
        """Rows that changed after `since`: in memory, or in a file where memory is short."""
        columns = served_columns(self.step.layout.segments, self.champion)
        marks = since.tables if since is not None else dict.fromkeys(self.step.tables, 0)
        if self.copied is not None:
            self.copied.finish(self.step.tables)
            marks = self.copied.marks
        if self.step.tiers is None:
            exported = ((name, *table.export(marks[name], state=False)) for name, table in self._tables)
            return {name: (keys, values[:, columns]) for name, keys, values in exported}, self.copied
        spool = Spool(self.step.tiers.folder)
        for name, table in self._tables:
            for keys, values in table.chunks(marks[name], state=False):
                spool.add(name, keys, values[:, columns])
        return {}, spool

    @property
    def _tables(self) -> Iterable[tuple[str, DynamicTable]]:
        return self.step.tables.items()

    def _weights(self) -> dict[str, torch.Tensor]:
        """This rank's weights of the served models and their sub-models."""
        kept = (
            *(f"{role}." for role in served_roles(self.champion)),
            *(f"{CONTENT}{name}." for name in self._contents),
        )
        return {name: tensor for name, tensor in self.step.weights().items() if name.startswith(kept)}

    @property
    def _contents(self) -> tuple[str, ...]:
        """Content that the contenders and the pre-rank model look at."""
        fields, configs = self.step.fields, self.step.configs
        roles = [*self.pipeline.contenders, "prerank"]
        wanted = [f for r in roles if r in configs for f in configs[r].gathers(fields).content]
        return content_of(self.pipeline.content, wanted)

    def _content(self, *, whole: bool) -> dict[str, Precompute]:
        """Content → its precompute, over the ids whose features are on this rank. Collective."""
        ams, content = self.step.ams, dict[str, Precompute]()
        for name in self._contents if ams is not None else ():
            assert ams is not None
            if name in self.refreshes:
                content[name] = self.refreshes[name].plan(
                    ams.networks[name], self.now_ms, whole=whole, first_ms=self.first_ms
                )
            else:
                content[name] = ContentPrecompute(name, ams.networks[name], ams.stores[name])
        return content

    def _statistics(self) -> dict[str, torch.Tensor]:
        """Running statistics of features, beside rank 0's weights and under their own prefix."""
        if self.control.rank != 0:
            return {}
        state = self.statistics.state()
        return {FEATURES + name: torch.from_numpy(array.copy()) for name, array in state.items()}

    def _lookup_rows(self, since: int) -> Iterator[Values]:
        """Changed look-up rows; every rank knows all of them and takes its share of the buckets."""
        from livectr.trainer.publish.store_types import Values  # imports redis

        for topic, table in self.source.tables.items():
            keys, rows = table.changed(since)
            own = np.flatnonzero(buckets_of(keys) % self.control.world == self.control.rank)
            values = [encode_lookup_row(row) if (row := rows[i]) is not None else None for i in own.tolist()]
            yield Values(keys[own], self.space.lookup_rows(topic, keys[own]), values, LOOKUP + topic)

    def _histories(self, changes: Mapping[str, Histories]) -> Iterator[Values]:
        """Changed behavior histories of this rank's users; those of expired users are removed."""
        from livectr.trainer.publish.store_types import Values

        for name, (users, lengths, items, times) in changes.items():
            ends = np.cumsum(lengths).tolist()
            values: list[bytes | None] = [
                encode_history(items[end - n : end], times[end - n : end]) if n else None  # the user has left
                for end, n in zip(ends, lengths.tolist(), strict=True)
            ]
            yield Values(users, self.space.histories(name, users), values, HISTORY + name)

    def _kept(self, histories: Mapping[str, Histories]) -> dict[str, I64] | None:
        """Keys of all look-up rows and histories, on rank 0. Collective."""
        users = {name: changed.users for name, changed in histories.items()}
        parts = [
            safetensors.numpy.load(part) for part in self.control.gather_bytes(safetensors.numpy.save(users))
        ]
        if self.control.rank != 0:
            return None
        kept = {LOOKUP + topic: np.sort(table.keys) for topic, table in self.source.tables.items()}
        names = {name for part in parts for name in part}
        return kept | {
            HISTORY + name: np.unique(np.concatenate([part[name] for part in parts if name in part]))
            for name in names
        }

    def _items(self, since: Boundary | None) -> Items | None:
        """Items that rank 0 knows, all or those of its plan, and a copy of what their vectors depend on; None
        without a pre-rank model. Collective.
        """
        if self.pipeline.prerank is None or self.pipeline.items is None:
            return None
        refresh, plan, sample = self.item_refresh, None, None
        table = self.source.tables[self.pipeline.items.topic] if self.control.rank == 0 else None
        generation = since.lookup_rows if since is not None else 0
        if refresh is not None and refresh.drift is not None:
            drawn = refresh.drift.sample(table, generation) if table is not None else None
            drawn, _, copied = self._copied(table, drawn)
            sample = drawn, _vectors(copied, self.control)
        if table is not None and refresh is not None:
            plan = refresh.plan(
                table, generation, self.now_ms, whole=since is None, sample=sample, first_ms=self.first_ms
            )
        ids, failed, copied = self._copied(table, plan.ids if plan is not None else None)
        compute = partial(_vectors, copied)
        if refresh is None:
            return Items(ids, copied.out, compute, ItemBlobs.of_all(len(ids), copied.out))
        if plan is not None:
            plan = plan.without(failed)
        told = self.control.broadcast_json([plan.tags, plan.whole] if plan is not None else [])
        if plan is None:
            return Items(ids, copied.out, compute, ItemBlobs(told[0], (), told[1]))
        blobs = ItemBlobs(plan.tags, plan.sizes, plan.whole, plan.left, plan.published)
        return Items(ids, copied.out, compute, blobs)

    def _copied(self, table: LookupTable | None, ids: I64 | None) -> tuple[I64, Bools, ItemCopy]:
        """Copy what the vectors of some of rank 0's items depend on. Collective.

        Args:
            table: of the items; None on the other ranks.
            ids: i64[n]; of rank 0. None: all.

        Returns:
            Ids without those that cannot be extracted, which servers report as unknown; bool[n], which are
            these; the copy.
        """
        packed, failed = b"", np.empty(0, bool)
        if table is not None:
            ids, rows = table.rows() if ids is None else (ids, table.take(ids))
            features = self.extract(self.pipeline.item_columns(rows), self.statistics)
            failed = features.failed
            if failed.any():
                ids, features = ids[~failed], features.take(np.flatnonzero(~failed))
            packed = safetensors.numpy.save(
                {"ids": ids, "offsets": features.offsets, "keys": features.keys, "dense": features.dense}
            )
        items = safetensors.numpy.load(self.control.broadcast_bytes(packed))
        features = Features(len(items["ids"]), items["offsets"], items["keys"], items["dense"])
        return items["ids"], failed, ItemCopy.of(self.step, features)
