"""Field-parallel step: ⊕ is an all-reduce, and every rank finishes all B examples (DES Algorithm 1).

Vectors that a model gathers besides are sent from their owner to every rank. Every rank computes the same
loss, so that backward needs no collective (DES §3.2.2). A single rank runs this way, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from livectr.models.inputs import Ragged
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.batch import F32, I32, GlobalBatch
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.partials import OwnerPartials
from livectr.trainer.des.reading import Leaves
from livectr.trainer.des.route import Route
from livectr.trainer.des.strategy import Scores
from livectr.trainer.feature_parts import GatheredInputs, join_dense, ragged, split_roles, to_tensor


class FieldParallel:
    """`Strategy` of aggregate='allreduce'.

    Args:
        route: exchange of every field.
        partials: of this rank's fields.
        collectives: of this rank.
    """

    def __init__(self, route: Route, partials: OwnerPartials, collectives: Collectives) -> None:
        self.route, self.partials, self.collectives = route, partials, collectives

    def aggregate(self, leaves: Leaves, batch: GlobalBatch) -> tuple[list[Tensor], GatheredInputs]:
        """All-reduce of the partial results: f32[B, S] of each role. See `Strategy`."""
        own, widths = self.partials.compute(leaves, batch), self.partials.widths
        if own is None:
            own = leaves.own.new_zeros(len(batch), sum(widths))
        total = self.collectives.aggregate(own, "sum") if sum(widths) else own
        return split_roles(total, widths), self._gathered(leaves, batch)

    def scores(self, own: Callable[[], Mapping[str, F32]], batch: GlobalBatch) -> Callable[[], Scores]:
        """Every rank has all logits and labels. See `Strategy`."""
        return lambda: (dict(own()), np.minimum(batch.label, np.float32(1)))

    def reduce_gradients(self, dense: DenseAdam) -> Callable[[], None]:
        """Sum the gradients of sub-models alone: all others are equal on all ranks. See `Strategy`.

        A sub-model embeds other ids on each rank.
        """
        if not dense.content:
            return lambda: None
        return dense.reduce_content(lambda flat: self.collectives.begin_all_reduce(flat, "sub-models"))

    # ── gathered inputs ──

    def _gathered(self, leaves: Leaves, batch: GlobalBatch) -> GatheredInputs:
        route, device = self.route, self.collectives.device
        dense = None
        if route.dense:
            common, own = to_tensor(batch.common, device), to_tensor(batch.dense, device)
            dense = join_dense(common, own, batch.group_of, route.common)
        sequences = self._sequences(leaves, batch)
        if route.world > 1:
            return GatheredInputs(self._pooled(leaves, batch), sequences, dense, device)
        pooled = {f: self.partials.pooled(f, leaves, batch) for f in route.pooled}
        block = self.partials.own_fields, leaves.own
        return GatheredInputs(pooled, sequences, dense, device, block)

    def _by_owner(self, fields: tuple[int, ...]) -> list[list[int]]:
        """Fields of each rank."""
        return [[f for f in fields if self.route.placement.owner[f] == r] for r in range(self.route.world)]

    def _pooled(self, leaves: Leaves, batch: GlobalBatch) -> dict[int, Tensor]:
        """All-gather of the pooled vectors: field → f32[B, K]."""
        if not self.route.pooled:
            return {}
        fields = self._by_owner(self.route.pooled)
        dim = leaves.own.shape[-1]
        own = [self.partials.pooled(f, leaves, batch) for f in fields[self.collectives.rank]]
        flat = torch.cat([self._nothing(), *(values.reshape(-1) for values in own)])
        sizes = [len(part) * len(batch) * dim for part in fields]
        parts = self.collectives.all_gather_tensors(flat, sizes, "vectors")
        pooled: dict[int, Tensor] = {}
        for names, part in zip(fields, parts, strict=True):
            pooled |= dict(zip(names, part.view(len(names), len(batch), dim), strict=True))
        return pooled

    def _sequences(self, leaves: Leaves, batch: GlobalBatch) -> dict[int, Ragged]:
        """All-gather of the sequences: field → lists of f32[nnz, K] of B examples."""
        route, rows = self.route, len(batch)
        if not route.sequences:
            return {}
        groups = {f: batch.group_of if f in route.common.fields else None for f in leaves.sequences}
        own = {
            f: ragged(values, leaves.lengths[f], groups[f], leaves.sizes.get(f))
            for f, values in leaves.sequences.items()
        }
        if route.world == 1:
            return own
        fields = self._by_owner(route.sequences)
        lengths: list[I32] = []
        for f, group_of in groups.items():
            part = leaves.lengths[f]
            assert isinstance(part, np.ndarray), "with several ranks keys are on the host"
            lengths.append(part if group_of is None else part[group_of])
        all_lengths = self.collectives.all_gather_ragged(
            np.concatenate([*lengths, np.empty(0, np.int32)]),
            [len(part) * rows for part in fields],
            "vectors",
        )
        flat = torch.cat([self._nothing(), *(lists.values.reshape(-1) for lists in own.values())])
        dim = leaves.own.shape[-1]
        sizes = [int(part.sum()) * dim for part in all_lengths]
        parts = self.collectives.all_gather_tensors(flat, sizes, "vectors")
        sequences: dict[int, Ragged] = {}
        for names, part_lengths, part in zip(fields, all_lengths, parts, strict=True):
            counts = part_lengths.reshape(len(names), rows)
            pieces = torch.split(part.view(-1, dim), counts.sum(axis=1).tolist())
            sequences |= {f: ragged(v, n, None) for f, v, n in zip(names, pieces, counts, strict=True)}
        return sequences

    def _nothing(self) -> Tensor:
        """Leaf f32[0], so that a rank without a share has a gradient to take part in."""
        return torch.zeros(0, requires_grad=True, device=self.collectives.device)
