"""A rank finishes its own samples: what comes to it from the owners of the fields, and what it makes of it.

From each rank comes one message of float32, and the gradients of it go back the same way:

    partial results f32[b, S], summed over the ranks: ⊕ as a reduce-scatter
    vectors of common fields f32[g, ·, D], and of the others f32[b, ·, D]
    rows f32[U, D] of the unique keys that this rank has asked for

Vectors, and rows once they are pooled, are what the near part of the networks computes with: its blocks of
the first layer are on every rank, and their gradients are summed over the ranks like those of `finish`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from livectr.models.base import CTRModel
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
    rows_at,
    spread,
    whole_dense,
)

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class SampleParallel:
    """The own samples of one rank. models: role → network of the near fields and all dense features."""

    def __init__(
        self,
        route: Route,
        models: Mapping[str, CTRModel],
        slices: Mapping[str, slice],
        dense_width: int,
        dim: int,
        collectives: Collectives,
    ) -> None:
        self.route, self.models, self.slices = route, models, slices
        self.collectives = collectives
        self.rank, self.dim = collectives.rank, dim
        self._names = route.near[0] + route.near[1]
        self._columns = columns_of(self._names, route.common, dense_width)
        self._size = sum(model.partial_size for model in models.values())
        self._senders = [bool(route.summed(r)) for r in range(route.world)]
        self._vectors = [
            tuple(sum((f in route.common.fields) is side for f in route.vectors(r)) for side in (True, False))
            for r in range(route.world)
        ]

    def finish(
        self, partial: Tensor | None, leaves: Leaves, far: tuple[Tensor, Tensor], batch: GlobalBatch
    ) -> tuple[list[Tensor], GatheredInputs]:
        """Aggregated f32[b, S] of each role, and what models gather of the own samples. Collective.

        partial: f32[B, ΣS] of the own fields, None where this rank has none. far: own vectors of all samples,
        common f32[G, ·, D] and others f32[B, ·, D].
        """
        aggregated, common, own, rows = self._swap(partial, leaves, far, batch)
        sides = self._sides(common, own, rows, batch)
        if not (sides[0].empty and sides[1].empty):
            found = partials(self.models, self.slices, *sides, batch.own_index)
            aggregated = (
                found if aggregated is None else [a + b for a, b in zip(aggregated, found, strict=True)]
            )
        assert aggregated is not None, "a pipeline has fields"
        return aggregated, self._gathered(sides, rows, batch)

    def _swap(
        self, partial: Tensor | None, leaves: Leaves, far: tuple[Tensor, Tensor], batch: GlobalBatch
    ) -> tuple[list[Tensor] | None, list[Tensor], list[Tensor], Tensor]:
        """Of own samples: partial results of each role, vectors of common fields and of others, and rows."""
        rows, cells, world = batch.rows, batch.cells, self.route.world
        asked = [
            torch.split(leaf, [len(part) for part in parts])
            for leaf, parts in zip(leaves.asked, batch.asked, strict=True)
        ]
        by_rank: list[list[Tensor]] = [
            [torch.zeros(0, requires_grad=True, device=self.collectives.device)] for _ in range(world)
        ]
        if partial is not None:
            for r, piece in enumerate(torch.split(partial, list(rows))):
                by_rank[r].append(piece)
        for vectors, counts in zip(far, (cells, rows), strict=True):
            for r, piece in enumerate(torch.split(vectors, list(counts))):
                by_rank[r].append(piece)
        for pieces in asked:
            for r, piece in enumerate(pieces):
                by_rank[r].append(piece)
        outgoing = [torch.cat([piece.reshape(-1) for piece in pieces]) for pieces in by_rank]
        own = batch.rows[self.rank], batch.cells[self.rank]
        sizes = [
            [
                own[0] * self._size * self._senders[r],
                own[1] * self._vectors[r][0] * self.dim,
                own[0] * self._vectors[r][1] * self.dim,
                batch.near.coming[r] * self.dim,
            ]
            for r in range(world)
        ]
        came = self.collectives.all_to_all(outgoing, list(map(sum, sizes)), self._sent(sizes, batch))
        split = [torch.split(flat, parts) for flat, parts in zip(came, sizes, strict=True)]
        total: Tensor | None = None
        for r, parts in enumerate(split):
            if self._senders[r]:
                piece = parts[0].view(own[0], self._size)
                total = piece if total is None else total + piece
        widths = [model.partial_size for model in self.models.values()]
        return (
            None if total is None else list(torch.split(total, widths, dim=1)),
            [parts[1].view(own[1], self._vectors[r][0], self.dim) for r, parts in enumerate(split)],
            [parts[2].view(own[0], self._vectors[r][1], self.dim) for r, parts in enumerate(split)],
            torch.cat([parts[3].view(-1, self.dim) for parts in split]),
        )

    def _sent(self, sizes: list[list[int]], batch: GlobalBatch) -> dict[str, int]:
        """Numbers that this rank sends to others: its values now, gradients of theirs on the way back."""
        others = len(batch) - batch.rows[self.rank], sum(batch.cells) - batch.cells[self.rank]
        mine = self._vectors[self.rank]
        asked = sum(len(part) for parts in batch.asked for r, part in enumerate(parts) if r != self.rank)
        forward = (
            others[0] * self._size * self._senders[self.rank],
            others[1] * mine[0] * self.dim + others[0] * mine[1] * self.dim,
            asked * self.dim,
        )
        back = [parts for r, parts in enumerate(sizes) if r != self.rank]
        backward = (
            sum(parts[0] for parts in back),
            sum(parts[1] + parts[2] for parts in back),
            sum(parts[3] for parts in back),
        )
        names = ("sum", "vectors", "rows")
        return {name: a + b for name, a, b in zip(names, forward, backward, strict=True) if a + b}

    def _sides(
        self, common: list[Tensor], own: list[Tensor], rows: Tensor, batch: GlobalBatch
    ) -> tuple[FeaturePart, FeaturePart]:
        """The near fields' pooled vectors: of groups, and of samples."""
        counts = batch.cells[self.rank], batch.rows[self.rank]
        lists: tuple[list[tuple[I32, I64]], list[tuple[I32, I64]]] = [], []
        for f, one in self._lists(batch).items():
            lists[f not in self.route.common.fields].append(one)
        values = [
            _beside([_pooled(rows, some, count), *vectors])
            for some, vectors, count in zip(lists, (common, own), counts, strict=True)
        ]
        numbers = [
            None if array is None else torch.from_numpy(np.ascontiguousarray(array)).to(rows.device)
            for array in (batch.common, batch.dense)
        ]
        shared, others = (FeaturePart(*three) for three in zip(values, numbers, self._columns, strict=True))
        return shared, others

    def _lists(self, batch: GlobalBatch) -> dict[int, tuple[I32, I64]]:
        """Field that travels as rows → lengths i32[cells], and which row each key reads, i64[nnz]."""
        ends = np.cumsum([0, *(int(lengths.sum()) for lengths in batch.near.lengths)])
        bounds = zip(batch.near.lengths, ends, ends[1:], strict=False)
        parts = [(lengths, batch.near.index[a:b]) for lengths, a, b in bounds]
        return dict(zip(self.route.rows, parts, strict=True))

    def _gathered(
        self, sides: tuple[FeaturePart, FeaturePart], rows: Tensor, batch: GlobalBatch
    ) -> GatheredInputs:
        route, index = self.route, batch.own_index
        pooled, sequences = {}, {}
        for f in route.pooled:
            side = f not in route.near[0]
            vectors = sides[side].values[:, route.near[side].index(f)]
            pooled[f] = vectors if side else spread(vectors, index)
        lists = self._lists(batch)
        for f in route.sequences:
            lengths, places = lists[f]
            values = rows_at(rows, places)
            sequences[f] = ragged(values, lengths, index if f in route.common.fields else None)
        dense = None
        if route.dense:
            dense = whole_dense(sides[0].dense, sides[1].dense, index, route.common)
        return GatheredInputs(pooled, sequences, dense, self.collectives.device)


def _beside(parts: list[Tensor]) -> Tensor:
    """f32[n, Σ F, D] of parts f32[n, F, D]; a single one as it is."""
    filled = [part for part in parts if part.shape[1]]
    return filled[0] if len(filled) == 1 else torch.cat(parts, dim=1)


def _pooled(rows: Tensor, lists: list[tuple[I32, I64]], cells: int) -> Tensor:
    """Sums of rows f32[U, D] over the lists of each field → f32[cells, F, D]."""
    if not lists:
        return rows.new_zeros(cells, 0, rows.shape[1])
    lengths = np.concatenate([one for one, _ in lists])
    if (lengths == 1).all():
        by_cell = np.stack([one for _, one in lists], axis=1).reshape(-1)
        return rows_at(rows, by_cell).view(cells, len(lists), rows.shape[1])
    index = torch.from_numpy(np.concatenate([one for _, one in lists])).to(rows.device)
    starts = torch.from_numpy(np.cumsum(lengths, dtype=np.int64) - lengths).to(rows.device)
    sums = embedding_bag(index, rows, starts, mode="sum")
    return sums.view(len(lists), cells, rows.shape[1]).transpose(0, 1)
