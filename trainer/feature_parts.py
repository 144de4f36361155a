"""Samples, and the groups that they are in: what is common to a group is computed once for it.

    common f32[G, Fc, D] ─► partial f32[G, S] ─┐
    own    f32[B, Fo, D] ─► partial f32[B, S] ─┴─► + ─► f32[B, S]

All sub-operators are sums over fields, so this is the same as doing all for every sample (DICM §7.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding

from livectr.ingest.common_features import Common
from livectr.models.base import Columns, CTRModel, Gathered, Gathers, Ragged
from livectr.trainer.groups import Groups


@dataclass(frozen=True)
class FeaturePart:
    """Samples or groups: values f32[n, F_side, D], dense f32[n, Dd_side] or None, and which of a network's
    fields and dense features these are (None: all)."""

    values: Tensor
    dense: Tensor | None
    columns: Columns | None

    @property
    def empty(self) -> bool:
        """Whether it has neither fields nor dense features."""
        return not self.values.shape[1] and (self.dense is None or not self.dense.shape[1])

    def partial(self, models: Mapping[str, CTRModel], slices: Mapping[str, slice]) -> list[Tensor]:
        """Partial results f32[n, S] of each role."""
        width = self.values.shape[-1]
        return [
            model.partial(
                self.values if at == slice(0, width) else self.values[..., at], self.dense, self.columns
            )
            for at, model in ((slices[role], model) for role, model in models.items())
        ]


def partials(
    models: Mapping[str, CTRModel],
    slices: Mapping[str, slice],
    common: FeaturePart,
    own: FeaturePart,
    index: NDArray[np.int32] | None,
) -> list[Tensor]:
    """Partial results f32[B, S] of each role; index: the group of each sample, None: each is its own."""
    found = own.partial(models, slices)
    if common.empty:
        return found
    shared = common.partial(models, slices)
    if index is None:
        return [a + b for a, b in zip(found, shared, strict=True)]
    groups = Groups(index, len(common.values), common.values.device)
    return [groups.add(a, b) for a, b in zip(found, shared, strict=True)]


def columns_of(fields: Sequence[int], common: Common, dense: int) -> tuple[Columns, Columns | None]:
    """Which columns of a network over these fields, and `dense` dense features, are common, and which not."""
    if not common:
        return Columns((), ()), None
    shared = tuple(i for i, f in enumerate(fields) if f in common.fields)
    others = tuple(i for i, f in enumerate(fields) if f not in common.fields)
    return Columns(shared, tuple(d for d in range(dense) if d in common.dense)), Columns(
        others, tuple(d for d in range(dense) if d not in common.dense)
    )


def rows_at(values: Tensor, index: NDArray[np.int32] | NDArray[np.int64]) -> Tensor:
    """values[index], f32[m, W] of f32[n, W]. Its backward adds up in order on any device; that of indexing
    with `index_select` would be atomic adds on a GPU, of other bits every time."""
    return embedding(torch.from_numpy(index).to(values.device), values)


def spread(values: Tensor, index: NDArray[np.int32] | None) -> Tensor:
    """Of each sample f32[B, W], out of those of its group f32[G, W]."""
    return values if index is None else rows_at(values, index)


def ragged(values: Tensor, lengths: NDArray[np.int32], index: NDArray[np.int32] | None) -> Ragged:
    """Lists of samples out of those of their groups: values f32[nnz, D], lengths i32[cells]."""
    if index is not None:
        starts = np.cumsum(lengths) - lengths
        lengths = lengths[index]
        offsets = np.cumsum(lengths) - lengths
        places = np.repeat(starts[index] - offsets, lengths) + np.arange(lengths.sum())
        values = rows_at(values, places)
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int64)
    return Ragged(values, torch.from_numpy(offsets).to(values.device))


def whole_dense(
    common: Tensor | None, own: Tensor | None, index: NDArray[np.int32] | None, which: Common
) -> Tensor | None:
    """Dense features f32[B, Dd], out of the common ones f32[G, Dc] and the others f32[B, Dd - Dc]."""
    if own is None or common is None or not which.dense:
        return own
    width = common.shape[1] + own.shape[1]
    order = np.argsort([*which.dense, *(d for d in range(width) if d not in which.dense)])
    return torch.cat([spread(common, index), own], dim=1)[:, torch.from_numpy(order).to(own.device)]


@dataclass(frozen=True)
class GatheredInputs:
    """What all roles together gather of B samples, rows of all roles: by field f32[B, D] pooled, sequences,
    and dense f32[B, Dd]."""

    pooled: Mapping[int, Tensor]
    sequences: Mapping[int, Ragged]
    dense: Tensor | None
    device: torch.device

    def of(self, gathers: Gathers, at: slice, field: Mapping[str, int]) -> Gathered | None:
        """One role's share; `at`: where its values are in a row, field: numbers of the fields."""
        if not gathers:
            return None
        pooled = [self.pooled[field[name]][:, at] for name in gathers.pooled]
        sequences = {}
        for name in gathers.sequences:
            one = self.sequences[field[name]]
            sequences[name] = Ragged(one.values[:, at], one.offsets)
        nothing = torch.zeros(0, 0, at.stop - at.start, device=self.device)
        stack = torch.stack(pooled, dim=1) if pooled else nothing
        return Gathered(stack, sequences, self.dense if gathers.dense else None)
