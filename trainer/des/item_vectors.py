"""Pre-rank vectors of items: partial results of the item tower, summed over the tables of all ranks.

At a step boundary the training thread copies what the vectors depend on: the item tower, the sub-models, and
the rows of the items' keys, each once. Products, images and sums over ranks are the publisher's thread's
work, while the next steps are learned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from livectr.ingest.plan.features import Features
from livectr.models.embedding import SubNetwork
from livectr.models.inputs import Columns, Gathered, Ragged
from livectr.models.two_tower import Tower, TwoTower, TwoTowerModel
from livectr.system.errors import ConfigError
from livectr.trainer.content.ams import Features16
from livectr.trainer.placement.placement import owners_by_key

if TYPE_CHECKING:
    from livectr.trainer.des.step import DesStep

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
M = TypeVar("M", bound=torch.nn.Module)
Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor on the CPU over all ranks."""

ITEM_CHUNK = 65_536
"""Items at a time, so that memory does not grow with the number of items."""
IMAGES = 1024
"""Images that the sub-model takes at a time."""


def item_vectors(step: DesStep, features: Features) -> F32:
    """Pre-rank vectors f32[n, out] of n items, at once. Collective; every rank passes the same items.

    Only the item tower's fields are read. Items that are not in the tables get their initial rows.

    Raises:
        ConfigError: the pipeline has no two-tower pre-rank model.
    """
    reduce, device = step.collectives.all_reduce, step.device
    return ItemCopy.of(step, features).vectors(lambda part: reduce(part.to(device), "items").cpu())


@dataclass(frozen=True)
class ItemCopy:
    """Copy of what the vectors of n items depend on, on one rank.

    Args:
        items: n.
        tower: item tower with this rank's fields of the field-parallel route.
        other: item tower of the sample-parallel fields, and the columns here; None: no such fields.
        width: fields that are held here.
        at: of these, the field-parallel ones.
        values: K.
        rows: of the item tower's fields that are held here.
        dense: f32[n, dense features here]; None if they are another rank's.
        images: of the item tower.
        device: that computes.
    """

    items: int
    tower: Tower
    other: tuple[Tower, list[int], Columns] | None
    width: int
    at: list[int]
    values: int
    rows: Sequence[_Rows]
    dense: F32 | None
    images: Sequence[_Images]
    device: torch.device

    @property
    def out(self) -> int:
        """Numbers of a vector."""
        return int(self.tower.mlp.weights[-1].shape[1])

    @staticmethod
    def of(step: DesStep, features: Features) -> ItemCopy:
        """Copy at a step boundary, after rows on the GPU were copied to the host's tables.

        Raises:
            ConfigError: the pipeline has no two-tower pre-rank model.
        """
        model, config = step.models.get("prerank"), step.spec.configs.get("prerank")
        if not isinstance(model, TwoTowerModel) or not isinstance(config, TwoTower):
            raise ConfigError("Pipeline: item vectors need prerank=livectr.models.TwoTower(...)")
        step.storage.flush()
        wanted = [i for i, f in enumerate(step.spec.held) if step.spec.fields[f] in config.item]
        own = _held_keys(step, features)
        parts: dict[str, list[I64]] = {}
        for i in wanted:
            parts.setdefault(step.spec.table_of[step.spec.held[i]], []).append(own.field(i)[1])
        _promote(step, {table: np.concatenate(keys) for table, keys in parts.items()})
        rows = [_Rows.of(step, i, *own.field(i)) for i in wanted]
        step.storage.evict()
        route, device = step.route, step.device
        dense_here = step.spec.placement.dense_owner == step.rank
        other = None
        if route.scatter:
            network = step.routed.networks.sample_parallel["prerank"]
            assert isinstance(network, TwoTowerModel)
            fields = route.sample_parallel[0] + route.sample_parallel[1]
            here = sorted((fields.index(f), step.spec.held.index(f)) for f in step.spec.held if f in fields)
            numbers = tuple(range(own.dense.shape[1])) if dense_here else ()
            columns = Columns(tuple(i for i, _ in here), numbers)
            other = copied(network.item), [i for _, i in here], columns
        return ItemCopy(
            items=features.rows,
            tower=copied(model.item),
            other=other,
            width=len(step.spec.held),
            at=[step.spec.held.index(f) for f in route.field_parallel(step.rank)],
            values=config.width,
            rows=rows,
            dense=own.dense.copy() if dense_here or route.scatter else None,
            images=_images(step, config, features),
            device=device,
        )

    @torch.no_grad()
    def vectors(self, reduce: Reduce) -> F32:
        """Vectors f32[n, out]. Collective by `reduce`."""
        values = torch.zeros(min(self.items, ITEM_CHUNK), self.width, self.values)
        parts = [
            self._chunk(values, start, min(start + ITEM_CHUNK, self.items), reduce)
            for start in range(0, self.items, ITEM_CHUNK)
        ]
        return np.concatenate(parts) if parts else np.empty((0, self.out), np.float32)

    def _chunk(self, memory: Tensor, first: int, end: int, reduce: Reduce) -> F32:
        """Vectors of some items; memory: f32[≥ end - first, width, K], 0 for fields of other towers."""
        for part in self.rows:
            memory[: end - first, part.column] = part.sums(first, end)
        values = memory[: end - first].to(self.device)
        dense = None if self.dense is None else torch.from_numpy(self.dense[first:end]).to(self.device)
        own = values if self.at == list(range(self.width)) else values[:, self.at]
        partial = self.tower.partial(own, dense if self.other is None else None)
        if self.other is not None:
            tower, here, columns = self.other
            assert dense is not None
            partial = partial + tower.partial(values[:, here], dense[:, list(columns.dense)], columns)
        summed = reduce(partial.cpu().contiguous()).to(self.device)
        images = {part.field: part.lists(first, end, reduce) for part in self.images}
        gathered = Gathered(torch.empty(0), {}, None, images)
        out: F32 = self.tower.vector(summed, self.tower.pooled_images(gathered)).cpu().numpy()
        return out


@dataclass(frozen=True)
class _Rows:
    """Values of a field's keys, each key once.

    Args:
        column: of the field, among those that are held.
        values: f32[U, K].
        index: row of each key of the items, i64[nnz].
        offsets: i64[n + 1].
    """

    column: int
    values: Tensor
    index: Tensor
    offsets: I64

    @staticmethod
    def of(step: DesStep, column: int, offsets: NDArray[np.int32], keys: I64) -> _Rows:
        unique, index = np.unique(keys, return_inverse=True)
        table = step.tables[step.spec.table_of[step.spec.held[column]]]
        values = table.lookup(unique)[:, step.spec.slices["prerank"]].copy()
        return _Rows(
            column, torch.from_numpy(values), torch.from_numpy(index), offsets.astype(np.int64) - offsets[0]
        )

    def sums(self, first: int, end: int) -> Tensor:
        """Sums f32[end - first, K] of the items' values."""
        start, stop = int(self.offsets[first]), int(self.offsets[end])
        if start == stop:
            return torch.zeros(end - first, self.values.shape[1])
        lists = torch.from_numpy(self.offsets[first : end + 1] - start)
        index = self.index[start:stop]
        return embedding_bag(index, self.values, lists, mode="sum", include_last_offset=True)


@dataclass(frozen=True)
class _Images:
    """Images of an item field, and the sub-model that embeds those whose features are here.

    Args:
        unique: ids i64[U].
        own: bool[U], the features of an id are here.
        index: place among the unique ids of each id of the items, i64[nnz].
        offsets: i64[n + 1].
    """

    field: str
    network: SubNetwork
    store: Features16
    unique: I64
    own: NDArray[np.bool_]
    index: I64
    offsets: I64

    def lists(self, first: int, end: int, reduce: Reduce) -> Ragged:
        """Vectors of the items' images."""
        start, stop = int(self.offsets[first]), int(self.offsets[end])
        some, index = np.unique(self.index[start:stop], return_inverse=True)
        device = self.network.absent.device
        vectors = torch.zeros(len(some), self.network.absent.shape[0])
        at = np.flatnonzero(self.own[some])
        for part in np.split(at, range(IMAGES, len(at), IMAGES)):
            features, known = self.store.read(self.unique[some[part]])
            embedded = self.network(torch.from_numpy(features).to(device), torch.from_numpy(known).to(device))
            vectors[torch.from_numpy(part)] = embedded.cpu()
        vectors = reduce(vectors).to(device)
        lists = torch.from_numpy(self.offsets[first : end + 1] - start).to(device)
        return Ragged(vectors[torch.from_numpy(index).to(device)], lists)


def copied(module: M) -> M:
    """Copy of a network that is not learned."""
    return copy.deepcopy(module).eval().requires_grad_(False)


def _images(step: DesStep, config: TwoTower, items: Features) -> list[_Images]:
    """Images that the item tower reads."""
    ams, found = step.ams, []
    for content in () if ams is None else ams.contents.values():
        fields = {number: field for number, field in content.fields.items() if field in config.item_images}
        network = copied(content.network) if fields else content.network
        for number, field in fields.items():
            offsets, keys = items.field(number)
            unique, index = np.unique(keys, return_inverse=True)
            own = content.owners(unique, step.collectives.world) == step.rank
            lists = offsets.astype(np.int64) - offsets[0]
            found.append(_Images(field, network, content.store, unique, own, index, lists))
    return found


def _held_keys(step: DesStep, items: Features) -> Features:
    """Fields whose rows are here; of a table that is split by key, only this rank's keys."""
    held = items.select_fields(step.spec.held)
    if not step.spec.placement.split:
        return held
    kept = np.ones(len(held.keys), bool)
    for i, f in enumerate(step.spec.held):
        if step.spec.table_of[f] in step.spec.placement.split:
            at = slice(held.offsets[i * held.rows], held.offsets[(i + 1) * held.rows])
            kept[at] = owners_by_key(held.keys[at], step.spec.placement.world) == step.rank
    before = np.r_[0, np.cumsum(kept)].astype(np.int32)
    return replace(held, offsets=before[held.offsets], keys=held.keys[kept])


def _promote(step: DesStep, keys: dict[str, I64]) -> None:
    """Put the stored rows of items into DRAM."""
    if step.storage.tiers is not None:
        step.storage.promote(step.storage.prefetch(keys))
