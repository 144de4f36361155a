"""Sample-parallel step: ⊕ is a reduce-scatter, and a rank finishes its own b examples.

Each rank sends one float32 message to each other rank; the gradients go back the same way:

    sum       partial results f32[b, S], which the receiver adds up: ⊕ as a reduce-scatter
    vectors   pooled vectors: f32[g, ·, K] of common fields, f32[b, ·, K] of the others; then of fields whose
              table is split by key, as partial sums that the receiver adds up
    rows      f32[U, K] of the unique keys that the receiver has requested

Vectors, and rows once they are pooled, are inputs of the sample-parallel networks. These hold the fields'
blocks of the first layer on every rank; their gradients are summed over the ranks, like those of `finish`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from livectr.models.base import CTRModel
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.batch import F32, I32, I64, GlobalBatch
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.partials import OwnerPartials
from livectr.trainer.des.reading import Leaves
from livectr.trainer.des.route import Route
from livectr.trainer.des.scores import all_gather_scores
from livectr.trainer.des.strategy import Scores
from livectr.trainer.feature_parts import (
    FeaturePart,
    GatheredInputs,
    columns_of,
    join_dense,
    partials,
    per_example,
    ragged,
    rows_at,
    split_roles,
    to_tensor,
)
from livectr.trainer.host_copies import to_device


@dataclass(frozen=True)
class _Received:
    """Values for own examples, out of all ranks' messages.

    Attributes:
        partials: f32[b, S] of each role, summed over the ranks; None where no field is field-parallel
        common: f32[g, ·, K] from each rank, vectors of common fields; then those of split tables, summed
            over the ranks
        own: f32[b, ·, K], the same of the other fields
        rows: f32[U, K], requested rows
    """

    partials: list[Tensor] | None
    common: list[Tensor]
    own: list[Tensor]
    rows: Tensor


class SampleParallel:
    """`Strategy` of aggregate='reducescatter'.

    Args:
        route: exchange of every field.
        owner_partials: of this rank's fields, for all ranks' examples.
        models: role → network of the sample-parallel fields and all dense features.
        slices: role → its columns of a row.
        dense_width: dense features of the pipeline.
        dim: K, width of a row.
        collectives: of this rank.
    """

    def __init__(
        self,
        route: Route,
        owner_partials: OwnerPartials,
        models: Mapping[str, CTRModel],
        slices: Mapping[str, slice],
        dense_width: int,
        dim: int,
        collectives: Collectives,
    ) -> None:
        self.route, self.owner_partials = route, owner_partials
        self.models, self.slices = models, slices
        self.collectives = collectives
        self.rank, self.dim = collectives.rank, dim
        fields = route.sample_parallel[0] + route.sample_parallel[1]
        self._columns = columns_of(fields, route.common, dense_width)
        self._size = sum(model.partial_size for model in models.values())
        self._sums = [bool(route.field_parallel(r)) for r in range(route.world)]
        self._vectors = [
            tuple(
                sum((f in route.common.fields) is part for f in fields)
                for fields in (route.vectors(r), route.split_vectors)
                for part in (True, False)
            )
            for r in range(route.world)
        ]

    def aggregate(self, leaves: Leaves, batch: GlobalBatch) -> tuple[list[Tensor], GatheredInputs]:
        """Reduce-scatter of the partial results, plus those of the sample-parallel fields. See `Strategy`.

        Sums are f32[b, S] of each role.
        """
        received = self._exchange(leaves, batch)
        parts = self._parts(received, batch)
        aggregated = received.partials
        if not (parts[0].empty and parts[1].empty):
            own = partials(self.models, self.slices, *parts, batch.own_group_of)
            aggregated = own if aggregated is None else [a + b for a, b in zip(aggregated, own, strict=True)]
        assert aggregated is not None, "a pipeline has fields"
        return aggregated, self._gathered(parts, received.rows, batch)

    def scores(self, own: Callable[[], Mapping[str, F32]], batch: GlobalBatch) -> Callable[[], Scores]:
        """All-gather of own logits and labels. See `Strategy`.

        On a GPU it begins where the scores are read: a step waits for logits and gradients at once.
        """

        def begun() -> Callable[[], Scores]:
            return all_gather_scores(own(), batch.label, batch.rows, self.collectives)

        if self.collectives.device.type == "cpu":
            return begun()
        received = functools.cache(begun)
        return lambda: received()()

    def reduce_gradients(self, dense: DenseAdam) -> Callable[[], None]:
        """All-reduce of the gradients of all replicated parameters. See `Strategy`."""
        return dense.reduce(lambda flat: self.collectives.begin_all_reduce(flat, "networks"))

    # ── the exchange ──

    def _exchange(self, leaves: Leaves, batch: GlobalBatch) -> _Received:
        """All-to-all of partial results, vectors and rows."""
        rows, groups = batch.rows[self.rank], batch.groups[self.rank]
        sizes = [
            [
                rows * self._size * self._sums[r],
                *self._vector_sizes(r, groups, rows),
                batch.requested_rows.received[r] * self.dim,
            ]
            for r in range(self.route.world)
        ]
        outgoing = self._outgoing(leaves, batch)
        incoming = self.collectives.all_to_all(outgoing, list(map(sum, sizes)), self._sent(sizes, batch))
        split = [torch.split(flat, parts) for flat, parts in zip(incoming, sizes, strict=True)]
        total: Tensor | None = None
        for r, parts in enumerate(split):
            if self._sums[r]:
                piece = parts[0].view(rows, self._size)
                total = piece if total is None else total + piece
        widths = [model.partial_size for model in self.models.values()]

        def vectors(kind: int, cells: int) -> list[Tensor]:
            whole, sums = (
                [parts[1 + k].view(cells, self._vectors[r][k], self.dim) for r, parts in enumerate(split)]
                for k in (kind, kind + 2)
            )
            return [*whole, functools.reduce(torch.add, sums)]

        return _Received(
            partials=None if total is None else split_roles(total, widths),
            common=vectors(0, groups),
            own=vectors(1, rows),
            rows=torch.cat([parts[-1].view(-1, self.dim) for parts in split]),
        )

    def _vector_sizes(self, rank: int, groups: int, rows: int) -> list[int]:
        """Numbers of each of `Leaves.vectors` that a rank sends for these groups and examples."""
        cells = groups, rows, groups, rows
        return [n * count * self.dim for n, count in zip(cells, self._vectors[rank], strict=True)]

    def _outgoing(self, leaves: Leaves, batch: GlobalBatch) -> list[Tensor]:
        """Message to each rank: partial results and vectors of its examples, and the rows it requested."""
        pieces: list[list[Tensor]] = [
            [torch.zeros(0, requires_grad=True, device=self.collectives.device)]
            for _ in range(self.route.world)
        ]

        def send(values: Tensor, counts: list[int]) -> None:
            for to_rank, piece in zip(pieces, torch.split(values, counts), strict=True):
                to_rank.append(piece)

        own = self.owner_partials.compute(leaves, batch)
        if own is not None:
            send(own, list(batch.rows))
        cells = (list(batch.groups), list(batch.rows)) * 2
        for values, counts in zip(leaves.vectors, cells, strict=True):
            send(values, counts)
        for leaf, keys in zip(leaves.requested, batch.requested_keys, strict=True):
            send(leaf, [len(part) for part in keys])
        return [torch.cat([piece.reshape(-1) for piece in to_rank]) for to_rank in pieces]

    def _sent(self, sizes: list[list[int]], batch: GlobalBatch) -> dict[str, int]:
        """Numbers that this rank sends to others: its values forward, gradients of theirs backward."""
        rows = len(batch) - batch.rows[self.rank]
        groups = sum(batch.groups) - batch.groups[self.rank]
        requested = sum(
            len(keys) for parts in batch.requested_keys for r, keys in enumerate(parts) if r != self.rank
        )
        forward = (
            rows * self._size * self._sums[self.rank],
            sum(self._vector_sizes(self.rank, groups, rows)),
            requested * self.dim,
        )
        others = [parts for r, parts in enumerate(sizes) if r != self.rank]
        backward = (
            sum(parts[0] for parts in others),
            sum(sum(parts[1:-1]) for parts in others),
            sum(parts[-1] for parts in others),
        )
        names = ("sum", "vectors", "rows")
        return {name: a + b for name, a, b in zip(names, forward, backward, strict=True) if a + b}

    # ── own examples ──

    def _parts(self, received: _Received, batch: GlobalBatch) -> tuple[FeaturePart, FeaturePart]:
        """Sample-parallel features of own groups, and of own examples."""
        counts = batch.groups[self.rank], batch.rows[self.rank]
        lists: tuple[list[tuple[I32, I64]], list[tuple[I32, I64]]] = [], []
        for f, keys in self._lists(batch).items():
            lists[f not in self.route.common.fields].append(keys)
        values = [
            _side_by_side([_pooled(received.rows, keys, count), *vectors])
            for keys, vectors, count in zip(lists, (received.common, received.own), counts, strict=True)
        ]
        dense = [to_tensor(array, received.rows.device) for array in (batch.common, batch.dense)]
        common, own = (FeaturePart(*part) for part in zip(values, dense, self._columns, strict=True))
        return common, own

    def _lists(self, batch: GlobalBatch) -> dict[int, tuple[I32, I64]]:
        """Field of `Route.rows` → lengths i32[cells], and the row that each key reads, i64[nnz]."""
        requested = batch.requested_rows
        ends = np.cumsum([0, *(int(lengths.sum()) for lengths in requested.lengths)])
        bounds = zip(requested.lengths, ends, ends[1:], strict=False)
        parts = [(lengths, requested.index[a:b]) for lengths, a, b in bounds]
        return dict(zip(self.route.rows, parts, strict=True))

    def _gathered(
        self, parts: tuple[FeaturePart, FeaturePart], rows: Tensor, batch: GlobalBatch
    ) -> GatheredInputs:
        """Inputs that models gather, of own examples."""
        route, group_of = self.route, batch.own_group_of
        common, own = route.sample_parallel
        pooled, sequences = {}, {}
        for f in route.pooled:
            if f in common:
                pooled[f] = per_example(parts[0].values[:, common.index(f)], group_of)
            else:
                pooled[f] = parts[1].values[:, own.index(f)]
        lists = self._lists(batch)
        for f in route.sequences:
            lengths, places = lists[f]
            values = rows_at(rows, places)
            sequences[f] = ragged(values, lengths, group_of if f in route.common.fields else None)
        dense = None
        if route.dense:
            dense = join_dense(parts[0].dense, parts[1].dense, group_of, route.common)
        return GatheredInputs(pooled, sequences, dense, self.collectives.device)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """f32[n, Σ F, K] of parts f32[n, F, K]; a single part is returned as it is."""
    filled = [part for part in parts if part.shape[1]]
    return filled[0] if len(filled) == 1 else torch.cat(parts, dim=1)


def _pooled(rows: Tensor, lists: list[tuple[I32, I64]], cells: int) -> Tensor:
    """Sum-pool rows f32[U, K] over the lists of each field → f32[cells, F, K]."""
    if not lists:
        return rows.new_zeros(cells, 0, rows.shape[1])
    lengths = np.concatenate([part for part, _ in lists])
    if (lengths == 1).all():
        by_cell = np.stack([index for _, index in lists], axis=1).reshape(-1)
        return rows_at(rows, by_cell).view(cells, len(lists), rows.shape[1])
    index = to_device(np.concatenate([part for _, part in lists]), rows.device)
    starts = to_device(np.cumsum(lengths, dtype=np.int64) - lengths, rows.device)
    sums = embedding_bag(index, rows, starts, mode="sum")
    return sums.view(len(lists), cells, rows.shape[1]).transpose(0, 1)
