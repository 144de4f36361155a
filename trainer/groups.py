"""Add partial results of groups to those of their examples, with autograd (common features, DICM §7.2)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from livectr.trainer.host_copies import to_device


class Groups:
    """G groups of B examples.

    The backward of `add` sums the examples of a group in their order, so that equal steps give equal bits on
    every device.

    Args:
        index: i32[B], group of each example.
        groups: G.
        device: of the partial results.
    """

    def __init__(self, index: NDArray[np.int32], groups: int, device: torch.device) -> None:
        counts = np.bincount(index, minlength=groups)
        self.index = to_device(index, device)
        self.order = to_device(np.argsort(index, kind="stable").astype(np.int32), device)
        self.starts = to_device((np.cumsum(counts) - counts).astype(np.int32), device)

    def add(self, rows: Tensor, groups: Tensor) -> Tensor:
        """Add groups f32[G, S] to the examples' rows f32[B, S], in place."""
        out: Tensor = _Add.apply(rows, groups, self)  # type: ignore[no-untyped-call]
        return out

    def sum(self, rows: Tensor) -> Tensor:
        """Sum of each group: f32[B, S] → f32[G, S]."""
        return embedding_bag(self.order, rows.contiguous(), self.starts, mode="sum")


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, rows: Tensor, groups: Tensor, which: Groups
    ) -> Tensor:
        ctx.groups = which  # type: ignore[attr-defined]
        ctx.mark_dirty(rows)
        return rows.add_(groups.index_select(0, which.index))

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        which: Groups = ctx.groups  # type: ignore[attr-defined]
        return grads[0], which.sum(grads[0]), None
