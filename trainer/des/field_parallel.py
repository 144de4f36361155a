"""Every rank computes partial results of its own fields for all samples, and finishes all of them: ⊕ as an
all-reduce (the paper), or a single rank.

What a model gathers besides is sent from its owner to every rank. Every rank computes the same loss, so that
nothing crosses on the way back.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.models.base import CTRModel, Ragged
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.exchange import GlobalBatch
from livectr.trainer.des.reading import Leaves
from livectr.trainer.des.route import Route
from livectr.trainer.feature_parts import (
    FeaturePart,
    GatheredInputs,
    columns_of,
    partials,
    ragged,
    spread,
    whole_dense,
)


class FieldParallel:
    """The own fields of one rank, of all samples.

    models: role → network of the own fields that travel as partial results, and of the dense features where
    these are here.
    """

    def __init__(
        self,
        route: Route,
        models: Mapping[str, CTRModel],
        slices: Mapping[str, slice],
        dense_width: int,
        collectives: Collectives,
    ) -> None:
        self.route, self.models, self.slices = route, models, slices
        self.collectives = collectives
        rank = collectives.rank
        self.far = route.far(rank)
        self._dense_here = not route.scatter and route.placement.dense_owner == rank
        self._columns = columns_of(route.summed(rank), route.common, dense_width)
        self._any = bool(route.summed(rank)) or (self._dense_here and dense_width > 0)
        sides = [tuple(f for f in self.far if (f in route.common.fields) is side) for side in (True, False)]
        self._side_fields = sides
        self._partial = [
            tuple(i for i, f in enumerate(s) if route.field_exchange[f] == "partial") for s in sides
        ]
        self._vectors = [
            tuple(i for i, f in enumerate(s) if route.field_exchange[f] == "vectors") for s in sides
        ]

    def partial(self, leaves: Leaves, batch: GlobalBatch) -> list[Tensor] | None:
        """Partial results f32[B, S] of each role; None where this rank has no share in them."""
        if not self._any:
            return None
        dense = [self._tensor(array) if self._dense_here else None for array in (batch.common, batch.dense)]
        values = [
            _columns(leaf, at) for leaf, at in zip((leaves.common, leaves.own), self._partial, strict=True)
        ]
        common, own = (FeaturePart(*three) for three in zip(values, dense, self._columns, strict=True))
        return partials(self.models, self.slices, common, own, batch.index)

    def vectors(self, leaves: Leaves) -> tuple[Tensor, Tensor]:
        """What travels as vectors: f32[G, ·, D] of common fields and f32[B, ·, D] of the others."""
        common, own = (
            _columns(leaf, at) for leaf, at in zip((leaves.common, leaves.own), self._vectors, strict=True)
        )
        return common, own

    def finish(
        self, partial: list[Tensor] | None, leaves: Leaves, batch: GlobalBatch
    ) -> tuple[list[Tensor], GatheredInputs]:
        """Aggregated f32[B, S] of each role, and what models gather, of all samples. Collective."""
        widths = [model.partial_size for model in self.models.values()]
        mine = leaves.own.new_zeros(len(batch), sum(widths)) if partial is None else torch.cat(partial, 1)
        total = self.collectives.aggregate(mine, "sum") if sum(widths) else mine
        return list(torch.split(total, widths, dim=1)), self._gathered(leaves, batch)

    def _gathered(self, leaves: Leaves, batch: GlobalBatch) -> GatheredInputs:
        route = self.route
        dense = None
        if route.dense:
            dense = whole_dense(
                self._tensor(batch.common), self._tensor(batch.dense), batch.index, route.common
            )
        return GatheredInputs(
            self._pooled(leaves, batch), self._sequences(leaves, batch), dense, self.collectives.device
        )

    def _pooled(self, leaves: Leaves, batch: GlobalBatch) -> dict[int, Tensor]:
        route, world = self.route, self.collectives.world
        if not route.pooled:
            return {}
        names = [[f for f in route.pooled if route.placement.owner[f] == r] for r in range(world)]
        dim = leaves.own.shape[-1]
        mine = [self._vector(f, leaves, batch) for f in names[self.collectives.rank]]
        flat = torch.cat([self._nothing(), *(v.reshape(-1) for v in mine)])
        sizes = [len(some) * len(batch) * dim for some in names]
        told = self.collectives.all_gather_tensors(flat, sizes, "vectors")
        found: dict[int, Tensor] = {}
        for some, part in zip(names, told, strict=True):
            found |= dict(zip(some, part.view(len(some), len(batch), dim), strict=True))
        return found

    def _vector(self, field: int, leaves: Leaves, batch: GlobalBatch) -> Tensor:
        """f32[B, D] of an own field."""
        common = field in self._side_fields[0]
        fields = self._side_fields[0 if common else 1]
        values = (leaves.common if common else leaves.own)[:, fields.index(field)]
        return spread(values, batch.index) if common else values

    def _sequences(self, leaves: Leaves, batch: GlobalBatch) -> dict[int, Ragged]:
        route, rows, world = self.route, len(batch), self.collectives.world
        if not route.sequences:
            return {}
        mine = {
            f: ragged(values, leaves.lengths[f], batch.index if f in route.common.fields else None)
            for f, values in leaves.sequences.items()
        }
        if world == 1:
            return mine
        names = [[f for f in route.sequences if route.placement.owner[f] == r] for r in range(world)]
        lengths = [np.diff(mine[f].offsets.cpu().numpy()).astype(np.int32) for f in mine]
        told = self.collectives.all_gather_ragged(
            np.concatenate([*lengths, np.empty(0, np.int32)]), [len(some) * rows for some in names], "vectors"
        )
        flat = torch.cat([self._nothing(), *(one.values.reshape(-1) for one in mine.values())])
        dim = leaves.own.shape[-1]
        parts = self.collectives.all_gather_tensors(flat, [int(part.sum()) * dim for part in told], "vectors")
        found: dict[int, Ragged] = {}
        for some, counts, part in zip(names, told, parts, strict=True):
            each = counts.reshape(len(some), rows)
            pieces = torch.split(part.view(-1, dim), each.sum(axis=1).tolist())
            found |= {f: ragged(v, n, None) for f, v, n in zip(some, pieces, each, strict=True)}
        return found

    def _nothing(self) -> Tensor:
        """f32[0], so that a rank without a share has a gradient to take part in."""
        return torch.zeros(0, requires_grad=True, device=self.collectives.device)

    def _tensor(self, array: NDArray[np.float32] | None) -> Tensor | None:
        return (
            None
            if array is None
            else torch.from_numpy(np.ascontiguousarray(array)).to(self.collectives.device)
        )


def _columns(values: Tensor, at: tuple[int, ...]) -> Tensor:
    """Some columns of f32[n, F, D], each once; `values` itself when these are all."""
    if len(at) == values.shape[1]:
        return values
    return values.index_select(1, torch.tensor(at, dtype=torch.long, device=values.device))
