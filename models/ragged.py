"""Lists of vectors, one list a sample: operations on `Ragged` that give the same bits on every run.

Indexing by the sample of each vector would do the same, but its gradient is a scatter of atomic adds on a
GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.base import Ragged


def sample_of(offsets: Tensor) -> Tensor:
    """The sample i64[nnz] of each vector, from offsets i64[B + 1]."""
    samples = torch.arange(len(offsets) - 1, device=offsets.device)
    return torch.repeat_interleave(samples, offsets.diff())


def list_sum(vectors: Tensor, offsets: Tensor) -> Tensor:
    """f32[nnz, W] of lists with offsets i64[B + 1] → their sums f32[B, W]; 0 for an empty list."""
    out: Tensor = _ListSum.apply(vectors, offsets)  # type: ignore[no-untyped-call]
    return out


def spread(rows: Tensor, offsets: Tensor) -> Tensor:
    """f32[B, W] → f32[nnz, W]: each sample's row, once for each vector of its list."""
    out: Tensor = _Spread.apply(rows, offsets)  # type: ignore[no-untyped-call]
    return out


def padded(ragged: Ragged) -> tuple[Tensor, Tensor]:
    """Lists side by side: f32[B, T, W], zero behind a list's end, and where they are, bool[B, T].

    T is the longest list's length, 0 where there is none.
    """
    lengths = ragged.offsets.diff()
    longest = int(lengths.max()) if len(lengths) else 0
    there = torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)
    width = ragged.values.shape[1]
    flat = ragged.values.new_zeros(there.numel(), width)
    at = there.flatten().nonzero().squeeze(1)
    return flat.index_copy(0, at, ragged.values).reshape(*there.shape, width), there


def _sums(vectors: Tensor, offsets: Tensor) -> Tensor:
    if not len(vectors):
        return vectors.new_zeros(len(offsets) - 1, vectors.shape[1])
    return torch.segment_reduce(vectors.contiguous(), "sum", offsets=offsets, initial=0)


class _ListSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        return _sums(vectors, offsets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (offsets,) = ctx.saved_tensors
        return grads[0].index_select(0, sample_of(offsets)), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        return rows.index_select(0, sample_of(offsets))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (offsets,) = ctx.saved_tensors
        return _sums(grads[0], offsets), None
