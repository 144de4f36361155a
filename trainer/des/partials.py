"""Sub-operators of a rank: partial results M_j(W_i, X_i) of its fields, of all B examples (DES §3.2.2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from livectr.models.base import CTRModel
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.batch import GlobalBatch
from livectr.trainer.des.reading import Leaves
from livectr.trainer.des.route import Route
from livectr.trainer.feature_parts import FeaturePart, columns_of, partials, per_example, to_tensor


class OwnerPartials:
    """Partial results of one rank's own fields, for the examples of all ranks.

    Args:
        route: exchange of every field.
        models: role → network of the own field-parallel fields, and of the dense features where these are
            here.
        slices: role → its columns of a row.
        dense_width: dense features of the pipeline.
        collectives: of this rank.
    """

    def __init__(
        self,
        route: Route,
        models: Mapping[str, CTRModel],
        slices: Mapping[str, slice],
        dense_width: int,
        collectives: Collectives,
    ) -> None:
        self.models, self.slices = models, slices
        self._device = collectives.device
        rank = collectives.rank
        summed = route.field_parallel(rank)
        self._dense_here = not route.scatter and route.placement.dense_owner == rank
        self._columns = columns_of(summed, route.common, dense_width)
        self._any = bool(summed) or (self._dense_here and dense_width > 0)
        self._fields = [
            tuple(f for f in summed if (f in route.common.fields) is common) for common in (True, False)
        ]

    @property
    def widths(self) -> list[int]:
        """S of each role."""
        return [model.partial_size for model in self.models.values()]

    @property
    def own_fields(self) -> tuple[int, ...]:
        """Fields of `Leaves.own`, in order."""
        return self._fields[1]

    def compute(self, leaves: Leaves, batch: GlobalBatch) -> Tensor | None:
        """Partial results f32[B, ΣS] of all roles; None where this rank has no share in them."""
        if not self._any:
            return None
        dense = [
            to_tensor(array, self._device) if self._dense_here else None
            for array in (batch.common, batch.dense)
        ]
        common, own = (
            FeaturePart(*part) for part in zip((leaves.common, leaves.own), dense, self._columns, strict=True)
        )
        return torch.cat(partials(self.models, self.slices, common, own, batch.group_of), dim=1)

    def pooled(self, field: int, leaves: Leaves, batch: GlobalBatch) -> Tensor:
        """Pooled vector f32[B, K] of an own field."""
        common = field in self._fields[0]
        fields = self._fields[0 if common else 1]
        values = (leaves.common if common else leaves.own)[:, fields.index(field)]
        return per_example(values, batch.group_of) if common else values
