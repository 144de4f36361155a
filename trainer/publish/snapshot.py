"""Snapshot of a version: copies of this rank's rows, values and weights at a step boundary.

A version holds the champion and the pre-rank model: their values of a row, and their weights. Of the other
contenders it holds the content vectors, which a server loads for whichever is the champion, and of shadows
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch

from livectr.ingest.drift.learned import Learned
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.content import content_of
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.table.layout import Segment
from livectr.kernels.table.table import DynamicTable
from livectr.models.roles import served_roles
from livectr.store.calibration import SegmentMaps
from livectr.store.hedge import WEIGHTS
from livectr.store.layout import CONTENT, FEATURES, HISTORY
from livectr.trainer.comm.control import Control
from livectr.trainer.content.precompute import ContentPrecompute, Precompute
from livectr.trainer.content.refresh import ContentRefresh
from livectr.trainer.des.step import DesStep
from livectr.trainer.finite import broken_rows, broken_weights
from livectr.trainer.publish.boundary import Boundary
from livectr.trainer.publish.items import ItemCopier
from livectr.trainer.publish.spool import CopyAhead, Spool
from livectr.trainer.publish.values import ValueCopier
from livectr.trainer.publish.version import VersionSnapshot, is_served

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def served_columns(segments: Sequence[Segment], champion: str) -> slice | I64:
    """Columns of a table row that are published: a slice where they lie together."""
    places = np.repeat([is_served(s.name, champion) for s in segments], [s.dim for s in segments])
    columns: I64 = np.flatnonzero(places)
    first, last = int(columns[0]), int(columns[-1])
    return slice(first, last + 1) if last - first + 1 == len(columns) else columns


@dataclass(frozen=True)
class Snapshotter:
    """Copies a rank's share of versions.

    Args:
        statistics: running statistics at this step boundary.
        values: copies look-up rows and histories.
        items: copies what item vectors depend on.
        champion: role of the ranking model that is published.
        refreshes: content → its refresh; of other content, all vectors are computed.
        now_ms: event time of this step boundary.
        first_ms: event time of this process's first example; 0 before it.
        copied: rows of a complete version that were copied ahead.
        maps: calibration of the champion, on rank 0; None: it is not calibrated.
        weights: of the heads, on rank 0; None: the champion is no hedge.
        learned: distributions of features, on rank 0; None: there are none.
    """

    pipeline: Pipeline
    step: DesStep
    control: Control
    statistics: Statistics
    values: ValueCopier
    items: ItemCopier
    champion: str = "rank"
    refreshes: Mapping[str, ContentRefresh] = field(default_factory=dict)
    now_ms: int = 0
    first_ms: int = 0
    copied: CopyAhead | None = None
    maps: SegmentMaps | None = None
    weights: F64 | None = None
    learned: Learned | None = None

    def at(
        self,
        statistics: Statistics,
        champion: str,
        maps: SegmentMaps | None = None,
        weights: F64 | None = None,
        learned: Learned | None = None,
        *,
        now_ms: int,
        first_ms: int,
    ) -> Snapshotter:
        """Snapshotter of a later step boundary; see the class."""
        items = replace(self.items, statistics=statistics, now_ms=now_ms, first_ms=first_ms)
        now = replace(
            self,
            statistics=statistics,
            champion=champion,
            maps=maps,
            weights=weights,
            learned=learned,
            now_ms=now_ms,
            first_ms=first_ms,
        )
        return replace(now, items=items)

    def ahead(self, boundary: Boundary) -> CopyAhead | None:
        """Begin to copy all rows ahead of a complete version; None: rows have no lasting numbers (SSD)."""
        if not all(table.sweeps for table in self.step.tables.values()):
            return None
        columns = served_columns(self.step.spec.layout.segments, self.champion)
        return CopyAhead(self.step.tables, boundary.tables, columns, self.champion)

    def take(self, steps: int, since: Boundary | None) -> VersionSnapshot:
        """Copy changes after `since`, or everything (None). Collective.

        Args:
            steps: learned so far.
            since: boundary of the version before; None: the version is complete.
        """
        self.step.storage.flush()
        values = self.values.take(since)
        rows, spool = self._rows(since)
        broken = [broken_rows(name, *of_table) for name, of_table in rows.items()]
        broken += [spool.broken] if spool is not None else []
        weights = self._weights()
        erased = (
            {name: table.erased(since.tables[name]) for name, table in self.step.tables.items()}
            if since
            else {}
        )
        return VersionSnapshot(
            step=steps,
            rows=rows,
            table_rows={name: len(table) for name, table in self.step.tables.items()},
            dense=safetensors.torch.save({**weights, **self._statistics(), **self._beside()}),
            values=values.changed,
            items=self.items.take(since),
            erased={name: keys for name, keys in erased.items() if len(keys)},
            content=self._content(whole=since is None),
            spool=spool,
            champion=self.champion,
            kept=values.kept,
            broken=next(filter(None, [*broken, broken_weights(weights)]), ""),
        )

    def keys_since(self, since: Boundary) -> dict[str, I64]:
        """Keys of this rank's rows and users that changed or left after `since`, by table.

        Histories have the prefix `store.layout.HISTORY`.
        """
        found = {}
        for name, table in self._tables:
            mark = since.tables[name]
            changed, erased = table.changed_keys(mark), table.erased(mark)
            found[name] = np.concatenate([changed, erased]) if len(erased) else changed
        for name, histories in self.values.source.history_changes(since.histories).items():
            found[HISTORY + name] = histories.users
        return {name: keys for name, keys in found.items() if len(keys)}

    def _rows(self, since: Boundary | None) -> tuple[dict[str, tuple[I64, F32]], Spool | CopyAhead | None]:
        """Rows that changed after `since`: in memory, or in a file where memory is short."""
        columns = served_columns(self.step.spec.layout.segments, self.champion)
        marks = since.tables if since is not None else dict.fromkeys(self.step.tables, 0)
        if self.copied is not None:
            self.copied.finish(self.step.tables)
            marks = self.copied.marks
        if self.step.storage.tiers is None:
            exported = ((name, *table.export(marks[name], state=False)) for name, table in self._tables)
            return {name: (keys, values[:, columns]) for name, keys, values in exported}, self.copied
        spool = Spool(self.step.storage.tiers.folder)
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
        if not self.pipeline.content:
            return ()
        fields, configs = self.step.spec.fields, self.step.spec.configs
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

    def _beside(self) -> dict[str, torch.Tensor]:
        """Maps of the champion, weights of its heads and distributions, beside rank 0's weights."""
        arrays = self.maps.arrays() if self.maps is not None else {}
        if self.weights is not None:
            arrays[WEIGHTS] = self.weights
        if self.learned is not None:
            arrays |= self.learned.arrays()
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def _statistics(self) -> dict[str, torch.Tensor]:
        """Running statistics of features, beside rank 0's weights and under their own prefix."""
        if self.control.rank != 0:
            return {}
        state = self.statistics.state()
        return {FEATURES + name: torch.from_numpy(array.copy()) for name, array in state.items()}
