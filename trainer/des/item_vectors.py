"""Pre-rank vectors of items out of all ranks' tables: an item tower's partial results, summed over ranks."""

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
from livectr.trainer.tables.tiers import Tiers

if TYPE_CHECKING:
    from livectr.trainer.des.step import DesStep

F32 = NDArray[np.float32]

ITEM_CHUNK = 65_536
"""Items per round, so that memory does not grow with the number of items."""


@torch.no_grad()
def item_vectors(step: DesStep, features: Features) -> F32:
    """Pre-rank vectors f32[n, out] of n items, whose features every rank brings alike. Collective.

    Only the item tower's fields are looked at; items that are not stored get their initial rows.
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
    """The item tower's partial results f32[n, H₁] of the rows and dense features that live here."""
    own = _held_keys(step, items)
    if step.tiers is not None:
        _bring_items(step, step.tiers, own)
    (rows,) = step.front.infer(own.offsets, own.keys, own.rows)
    if step.tiers is not None:
        step.tiers.evict()
    values = torch.from_numpy(rows).to(step.device)[..., step.slices["prerank"]]
    dense = torch.from_numpy(own.dense).to(step.device)
    here = step.placement.dense_owner == step.rank
    summed, near = step.route.summed(step.rank), step.route.near[0] + step.route.near[1]
    at = [step.held.index(f) for f in summed]
    found = model.item.partial(values[:, at], dense if here and not step.route.scatter else None)
    if not step.route.scatter:
        return found
    other = step.near_models["prerank"]
    assert isinstance(other, TwoTowerModel)
    mine = sorted((near.index(f), step.held.index(f)) for f in step.held if f in near)
    columns = Columns(tuple(i for i, _ in mine), tuple(range(dense.shape[1])) if here else ())
    return found + other.item.partial(values[:, [i for _, i in mine]], dense[:, list(columns.dense)], columns)


def _images(step: DesStep, items: Features) -> Gathered:
    """The vectors of the content that the item tower looks at. Collective."""
    config, ams = step.configs["prerank"], step.ams
    assert isinstance(config, TwoTower)
    found: dict[str, Ragged] = {}
    for name, one in ({} if ams is None else ams.contents).items():
        for number, field in one.fields.items():
            if ams is not None and field in config.item_images:
                offsets, keys = items.field(number)
                unique, index = np.unique(keys, return_inverse=True)
                vectors = torch.from_numpy(ams.vectors(name, unique)[index]).to(step.device)
                lists = torch.from_numpy(offsets.astype(np.int64)).to(step.device)
                found[field] = Ragged(vectors, lists)
    return Gathered(torch.empty(0), {}, None, found)


def _held_keys(step: DesStep, items: Features) -> Features:
    """The fields of which rows are here, those of tables that are split with this rank's keys only."""
    held = items.select_fields(step.held)
    kept = np.ones(len(held.keys), bool)
    for i, f in enumerate(step.held):
        if step.table_of[f] in step.placement.split:
            at = slice(held.offsets[i * held.rows], held.offsets[(i + 1) * held.rows])
            kept[at] = owners_by_key(held.keys[at], step.placement.world) == step.rank
    before = np.r_[0, np.cumsum(kept)].astype(np.int32)
    return replace(held, offsets=before[held.offsets], keys=held.keys[kept])


def _bring_items(step: DesStep, tiers: Tiers, own: Features) -> None:
    """The rows of items into memory, as far as they are stored."""
    parts: dict[str, list[NDArray[np.int64]]] = {}
    for i, f in enumerate(step.held):
        parts.setdefault(step.table_of[f], []).append(own.field(i)[1])
    tiers.promote(tiers.prefetch({table: np.concatenate(keys) for table, keys in parts.items()}))
