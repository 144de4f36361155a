"""Pre-rank vectors of items: partial results of the item tower, summed over the tables of all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.ingest.plan.features import Features
from livectr.kernels.errors import ConfigError
from livectr.models.base import Columns, Gathered, Ragged
from livectr.models.two_tower import TwoTower, TwoTowerModel
from livectr.trainer.placement.placement import owners_by_key

if TYPE_CHECKING:
    from livectr.trainer.des.step import DesStep

F32 = NDArray[np.float32]

ITEM_CHUNK = 65_536
"""Items at a time, so that memory does not grow with the number of items."""


@torch.no_grad()
def item_vectors(step: DesStep, features: Features) -> F32:
    """Pre-rank vectors f32[n, out] of n items. Collective; every rank passes the same items.

    Only the item tower's fields are read. Items that are not in the tables get their initial rows.

    Raises:
        ConfigError: the pipeline has no two-tower pre-rank model.
    """
    model = step.models.get("prerank")
    if not isinstance(model, TwoTowerModel):
        raise ConfigError("Pipeline: item vectors need prerank=livectr.models.TwoTower(...)")
    parts = []
    for start in range(0, features.rows, ITEM_CHUNK):
        chunk = features.take(np.arange(start, min(start + ITEM_CHUNK, features.rows)))
        partial = step.collectives.all_reduce(_item_partial(step, model, chunk), "items")
        images = model.item.pooled_images(_images(step, chunk))
        parts.append(model.item.vector(partial, images).cpu().numpy())
    return np.concatenate(parts) if parts else np.empty((0, model.item.mlp.weights[-1].shape[1]), np.float32)


def _item_partial(step: DesStep, model: TwoTowerModel, items: Features) -> Tensor:
    """Partial results f32[n, H] of the item tower, from the rows and dense features of this rank."""
    own = _held_keys(step, items)
    _promote(step, own)
    (rows,) = step.front.infer(own.offsets, own.keys, own.rows)
    step.storage.evict()
    values = torch.from_numpy(rows).to(step.device)[..., step.slices["prerank"]]
    dense = torch.from_numpy(own.dense).to(step.device)
    dense_here = step.placement.dense_owner == step.rank
    at = [step.held.index(f) for f in step.route.field_parallel(step.rank)]
    partial = model.item.partial(values[:, at], dense if dense_here and not step.route.scatter else None)
    if not step.route.scatter:
        return partial
    other = step.sample_parallel_models["prerank"]
    assert isinstance(other, TwoTowerModel)
    fields = step.route.sample_parallel[0] + step.route.sample_parallel[1]
    here = sorted((fields.index(f), step.held.index(f)) for f in step.held if f in fields)
    columns = Columns(tuple(i for i, _ in here), tuple(range(dense.shape[1])) if dense_here else ())
    return partial + other.item.partial(
        values[:, [i for _, i in here]], dense[:, list(columns.dense)], columns
    )


def _images(step: DesStep, items: Features) -> Gathered:
    """Vectors of the content that the item tower reads. Collective."""
    config, ams = step.configs["prerank"], step.ams
    assert isinstance(config, TwoTower)
    images: dict[str, Ragged] = {}
    for name, content in ({} if ams is None else ams.contents).items():
        for number, field in content.fields.items():
            if ams is not None and field in config.item_images:
                offsets, keys = items.field(number)
                unique, index = np.unique(keys, return_inverse=True)
                vectors = torch.from_numpy(ams.vectors(name, unique)[index]).to(step.device)
                lists = torch.from_numpy(offsets.astype(np.int64)).to(step.device)
                images[field] = Ragged(vectors, lists)
    return Gathered(torch.empty(0), {}, None, images)


def _held_keys(step: DesStep, items: Features) -> Features:
    """Fields whose rows are here; of a table that is split by key, only this rank's keys."""
    held = items.select_fields(step.held)
    kept = np.ones(len(held.keys), bool)
    for i, f in enumerate(step.held):
        if step.table_of[f] in step.placement.split:
            at = slice(held.offsets[i * held.rows], held.offsets[(i + 1) * held.rows])
            kept[at] = owners_by_key(held.keys[at], step.placement.world) == step.rank
    before = np.r_[0, np.cumsum(kept)].astype(np.int32)
    return replace(held, offsets=before[held.offsets], keys=held.keys[kept])


def _promote(step: DesStep, own: Features) -> None:
    """Put the stored rows of items into DRAM."""
    storage = step.storage
    if storage.tiers is None:
        return
    parts: dict[str, list[NDArray[np.int64]]] = {}
    for i, f in enumerate(step.held):
        parts.setdefault(step.table_of[f], []).append(own.field(i)[1])
    storage.promote(storage.prefetch({table: np.concatenate(keys) for table, keys in parts.items()}))
