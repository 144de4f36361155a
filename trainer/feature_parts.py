"""Common and own features: the part of a batch that a group shares is computed once for the group.

    common f32[G, F, K] ─► partial f32[G, S] ─┐
    own    f32[B, F, K] ─► partial f32[B, S] ─┴─► + ─► f32[B, S]

S is the width of the partial results. Sub-operators are sums over fields, so the result equals that of every
example computed for itself (DICM §7.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from livectr.ingest.common_features import Common
from livectr.models.base import CTRModel
from livectr.models.inputs import Columns, Gathered, Gathers, Ragged
from livectr.models.ragged import SharedLists, gather_rows, list_columns
from livectr.trainer.groups import Groups
from livectr.trainer.host_copies import to_device


@dataclass(frozen=True)
class FeaturePart:
    """Features of examples or of groups.

    Attributes:
        values: f32[n, F, K], pooled rows
        dense: f32[n, dense]; None: no dense features
        columns: the network's fields and dense features that these are; None: all
    """

    values: Tensor
    dense: Tensor | None
    columns: Columns | None

    @property
    def empty(self) -> bool:
        """True if it has neither fields nor dense features."""
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
    group_of: NDArray[np.int32] | None,
) -> list[Tensor]:
    """Partial results f32[B, S] of each role.

    Args:
        models: role → network.
        slices: role → its columns of a row.
        common: features of groups.
        own: features of examples.
        group_of: i32[B]; None: each example is its own group.
    """
    of_examples = own.partial(models, slices)
    if common.empty:
        return of_examples
    of_groups = common.partial(models, slices)
    if group_of is None:
        return [a + b for a, b in zip(of_examples, of_groups, strict=True)]
    groups = Groups(group_of, len(common.values), common.values.device)
    pairs = zip(of_examples, of_groups, strict=True)
    return [groups.add(a, b) if a.shape[1] else a for a, b in pairs]  # AutoInt has S = 0


def split_roles(sums: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Partial results f32[B, S] of each role, out of those of all roles.

    A single role's are returned as they are, because the backward pass of a split copies.
    """
    return [sums] if len(widths) == 1 else list(torch.split(sums, list(widths), dim=1))


def columns_of(fields: Sequence[int], common: Common, dense: int) -> tuple[Columns, Columns | None]:
    """Split the columns of a network over `fields` and `dense` dense features: common, and others."""
    if not common:
        return Columns((), ()), None
    shared = tuple(i for i, f in enumerate(fields) if f in common.fields)
    others = tuple(i for i, f in enumerate(fields) if f not in common.fields)
    return Columns(shared, tuple(d for d in range(dense) if d in common.dense)), Columns(
        others, tuple(d for d in range(dense) if d not in common.dense)
    )


def to_tensor(array: NDArray[np.float32] | Tensor | None, device: torch.device) -> Tensor | None:
    """The array on a device; a tensor that is there, and None, stay as they are."""
    if array is None or isinstance(array, Tensor):
        return None if array is None else array.to(device)
    return to_device(np.ascontiguousarray(array), device)


def rows_at(values: Tensor, index: NDArray[np.int32] | NDArray[np.int64]) -> Tensor:
    """Gather values[index], f32[m, W] of f32[n, W].

    Its backward adds in a fixed order on every device (`models.ragged.gather_rows`).
    """
    at = to_device(index.astype(np.int64, copy=False), values.device)
    return gather_rows(values, at)


def per_example(values: Tensor, group_of: NDArray[np.int32] | None) -> Tensor:
    """Values of examples f32[B, W] out of those of their groups f32[G, W]."""
    return values if group_of is None else rows_at(values, group_of)


def ragged(
    values: Tensor,
    lengths: NDArray[np.int32] | Tensor,
    group_of: NDArray[np.int32] | None,
    sizes: tuple[int, int] | None = None,
) -> Ragged:
    """Lists of examples: values f32[nnz, K] and lengths i32[cells] of their own, or those of their groups.

    Args:
        values: of the cells.
        lengths: of the cells.
        group_of: group of each example.
        sizes: longest of the lists, and vectors of all examples, where the host knows them.
    """
    if isinstance(lengths, Tensor):
        offsets = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int64), (1, 0))
    else:
        offsets = to_device(np.r_[0, np.cumsum(lengths)].astype(np.int64), values.device)
        sizes = sizes_of(lengths, group_of)
    longest, nnz = sizes or (None, None)
    lists = Ragged(values, offsets, longest=longest)
    if group_of is None:
        return lists
    return SharedLists(lists, to_device(group_of.astype(np.int64), values.device), nnz)


def sizes_of(lengths: NDArray[np.int32], group_of: NDArray[np.int32] | None) -> tuple[int, int]:
    """Longest of the lists, and vectors of all examples; see `ragged`."""
    return int(lengths.max(initial=0)), int((lengths if group_of is None else lengths[group_of]).sum())


def join_dense(
    common: Tensor | None, own: Tensor | None, group_of: NDArray[np.int32] | None, which: Common
) -> Tensor | None:
    """Dense features of examples f32[B, dense], in the pipeline's order.

    They are the common features of their groups, which `which` names, and their own.
    """
    if own is None or common is None or not which.dense:
        return own
    width = common.shape[1] + own.shape[1]
    order = np.argsort([*which.dense, *(d for d in range(width) if d not in which.dense)])
    both = torch.cat([per_example(common, group_of), own], dim=1)
    return both[:, to_device(order, own.device)]


@dataclass(frozen=True)
class GatheredInputs:
    """Inputs that models gather beside the aggregated partial results, of B examples and all roles.

    Attributes:
        pooled: field → f32[B, K]
        sequences: field → lists of f32[nnz, K]
        dense: f32[B, dense]; None where no model gathers them
        device: where the networks run
        block: fields, and their `pooled` side by side, f32[B, F, K]: a model that gathers these takes them
            at once; None: they are nowhere side by side
    """

    pooled: Mapping[int, Tensor]
    sequences: Mapping[int, Ragged]
    dense: Tensor | None
    device: torch.device
    block: tuple[tuple[int, ...], Tensor] | None = None

    def of_role(
        self,
        gathers: Gathers,
        columns: slice,
        number: Mapping[str, int],
        content: Mapping[str, Ragged] = MappingProxyType({}),
    ) -> Gathered | None:
        """Share of a role; None of one that gathers nothing.

        Args:
            gathers: fields that the role gathers.
            columns: of a row that are the role's.
            number: field name → number.
            content: field name → lists of the sub-model's vectors.
        """
        if not gathers:
            return None
        fields = tuple(number[name] for name in gathers.pooled)
        sequences = {}
        for name in gathers.sequences:
            sequences[name] = list_columns(self.sequences[number[name]], columns)
        if self.block is not None and self.block[0] == fields:
            stack = self.block[1][..., columns]
        elif fields:
            stack = torch.stack([self.pooled[f][:, columns] for f in fields], dim=1)
        else:
            stack = torch.zeros(0, 0, columns.stop - columns.start, device=self.device)
        vectors = {name: content[name] for name in gathers.content}
        return Gathered(stack, sequences, self.dense if gathers.dense else None, vectors)
