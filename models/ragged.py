"""Segment operations on lists of vectors (`Ragged`), with the same bits on every run.

Indexing by the example of each vector would do the same, but its gradient is a scatter of atomic adds on a
GPU.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

from livectr.kernels.runtime.gather import add_rows
from livectr.models.inputs import Gathered, Ragged


def gather_rows(values: Tensor, index: Tensor) -> Tensor:
    """Gathers values[index], f32[m, W] of f32[n, W] and i64[m]; its gradient adds in the order of `index`.

    The gradient of `index_select` is atomic adds on a GPU, whose bits differ from run to run. That of
    `embedding` takes 80 ns a row on a CPU, where a kernel takes its place.
    """
    if values.device.type != "cpu" or values.dtype != torch.float32 or not torch.is_grad_enabled():
        return embedding(index, values)
    out: Tensor = _RowsAt.apply(values, index)  # type: ignore[no-untyped-call]
    return out


class RepeatedList(Ragged):
    """A list that all examples share, as the lists of the user in a rank request.

    Its copies are made where an operation reads `values`. Those that know the class read `once`.

    Args:
        once: the list, f32[n, D_model].
        count: B.
    """

    once: Tensor

    def __init__(self, once: Tensor, count: int) -> None:
        offsets = torch.arange(count + 1) * len(once)
        own = {"once": once, "offsets": offsets, "same": True, "longest": len(once)}
        for name, value in own.items():
            object.__setattr__(self, name, value)  # the class is frozen

    @cached_property
    def values(self) -> Tensor:
        """Copies of the list, f32[B · n, D_model]."""
        return self.once.repeat(len(self.offsets) - 1, 1)


class SharedLists(Ragged):
    """Lists of groups, each shared by the group's examples, as the lists of a user in a batch.

    Their copies are made where an operation reads `values`. Those that know the class read `once`.

    Args:
        once: lists of the G groups.
        list_of: i64[B], list of each example.
        nnz: number of vectors of all copies; None: where copies are made, the host waits for it.
    """

    once: Ragged
    list_of: Tensor
    nnz: int | None

    def __init__(self, once: Ragged, list_of: Tensor, nnz: int | None = None) -> None:
        own = {"once": once, "list_of": list_of, "nnz": nnz, "same": False, "longest": once.longest}
        for name, value in own.items():
            object.__setattr__(self, name, value)  # the class is frozen

    @cached_property
    def offsets(self) -> Tensor:
        """Offsets i64[B + 1] of the copies."""
        ends = self.once.offsets.diff().index_select(0, self.list_of).cumsum(0)
        return torch.nn.functional.pad(ends, (1, 0))

    @cached_property
    def values(self) -> Tensor:
        """Copies of the lists, f32[nnz, D_model]; gradients are added in a fixed order."""
        before = self.once.offsets.index_select(0, self.list_of) - self.offsets[:-1]
        places = torch.repeat_interleave(before, self.offsets.diff(), output_size=self.nnz)
        return gather_rows(self.once.values, places + torch.arange(len(places), device=places.device))


def list_columns(lists: Ragged, columns: slice) -> Ragged:
    """Lists of some numbers of each vector."""
    if isinstance(lists, SharedLists):
        once = Ragged(lists.once.values[:, columns], lists.once.offsets, longest=lists.once.longest)
        return SharedLists(once, lists.list_of, lists.nnz)
    return Ragged(lists.values[:, columns], lists.offsets, longest=lists.longest)


def shared_list(seen: Ragged) -> Tensor | None:
    """The list f32[n, D_model] of all examples; None: each has its own."""
    if isinstance(seen, RepeatedList):
        return seen.once
    return seen.values[seen.offsets[0] : seen.offsets[1]] if seen.same else None


def example_of(offsets: Tensor, nnz: int) -> Tensor:
    """Example i64[nnz] of each vector, from offsets i64[B + 1]. The host does not wait for a GPU."""
    examples = torch.arange(len(offsets) - 1, device=offsets.device)
    return torch.repeat_interleave(examples, offsets.diff(), output_size=nnz)


def list_sum(lists: Ragged) -> Tensor:
    """Segment sum of lists of W numbers → f32[B, W]; 0 for an empty list. Shared lists are summed once."""
    if isinstance(lists, SharedLists):
        return gather_rows(list_sum(lists.once), lists.list_of)
    if not torch.is_grad_enabled():  # a request would spend as long on the function as on the sums
        return segment_sums(lists.values, lists.offsets)
    out: Tensor = _ListSum.apply(lists.values, lists.offsets)  # type: ignore[no-untyped-call]
    return out


def list_mean(lists: Ragged) -> Tensor:
    """Segment mean of lists, as `list_sum`."""
    if isinstance(lists, SharedLists):
        return gather_rows(list_mean(lists.once), lists.list_of)
    return list_sum(lists) / lengths(lists.offsets, lists.values)


def lengths(offsets: Tensor, like: Tensor) -> Tensor:
    """Lengths of lists with offsets i64[B + 1] as divisors f32[B, 1] of the type of `like`; at least 1."""
    return offsets.diff().clamp(min=1).to(like.dtype).unsqueeze(1)


def per_vector(rows: Tensor, offsets: Tensor, nnz: int) -> Tensor:
    """Repeats the row of each example, f32[B, W], for every vector of its list, f32[nnz, W]."""
    out: Tensor = _PerVector.apply(rows, offsets, nnz)  # type: ignore[no-untyped-call]
    return out


def list_max(lists: Ragged) -> Tensor:
    """Segment maximum of lists, elementwise, as `list_sum`; equal vectors share the gradient equally."""
    if isinstance(lists, SharedLists):
        return gather_rows(list_max(lists.once), lists.list_of)
    out: Tensor = _ListMax.apply(lists.values, lists.offsets)  # type: ignore[no-untyped-call]
    return out


def newest(ragged: Ragged, count: int) -> Tensor:
    """Concatenates the last `count` vectors of each list, last first: f32[B, count · W], zero-padded."""
    values, starts, ends = ragged.values, ragged.offsets[:-1], ragged.offsets[1:]
    at = ends.unsqueeze(1) - 1 - torch.arange(count, device=ends.device)
    nothing = values.new_zeros(1, values.shape[1])
    at = torch.where(at < starts.unsqueeze(1), len(values), at)
    return gather_rows(torch.cat([values, nothing]), at.flatten()).reshape(len(ends), count * values.shape[1])


def content(seen: Gathered, name: str) -> Ragged:
    """Vectors of a field's content; raises ValueError where they were not gathered."""
    if name not in seen.content:
        raise ValueError(f"the vectors of the content of {name!r}, which gathers() names, are not there")
    return seen.content[name]


def pooled_content(seen: Gathered, name: str) -> Tensor:
    """Mean of the vectors of a field's content, f32[B, W]; 0 for an example without."""
    lists = content(seen, name)
    if (
        not torch.is_grad_enabled()
        and not isinstance(lists, SharedLists)
        and len(lists.values) == len(lists.offsets) - 1
        and bool((lists.offsets.diff() == 1).all())
    ):
        return lists.values  # means of one vector each, as an ad's image
    return list_mean(lists)


def padded(ragged: Ragged) -> tuple[Tensor, Tensor]:
    """Pads lists to the longest length T.

    Returns:
        f32[B, T, W], zero behind a list's end, and bool[B, T], True inside a list. T is 0 without vectors.
    """
    counts = ragged.offsets.diff()
    longest = ragged.longest
    if longest is None:
        longest = int(counts.max()) if len(counts) else 0
    there = torch.arange(longest, device=counts.device) < counts.unsqueeze(1)
    nnz, width = ragged.values.shape
    flat = ragged.values.new_zeros(there.numel(), width)
    of = example_of(ragged.offsets, nnz)
    at = of * longest + torch.arange(nnz, device=of.device) - ragged.offsets[of]
    return flat.index_copy(0, at, ragged.values).reshape(*there.shape, width), there


def segment_sums(vectors: Tensor, offsets: Tensor) -> Tensor:
    """Segment sum without a gradient, for functions that have their own.

    It is several times as fast as `torch.segment_reduce`.

    Args:
        vectors: f32[nnz, W].
        offsets: i64[B + 1].

    Returns:
        f32[B, W].
    """
    if not len(vectors):
        return vectors.new_zeros(len(offsets) - 1, vectors.shape[1])
    all_of_them = torch.arange(len(vectors), device=vectors.device)
    out: Tensor = torch.embedding_bag(
        vectors.contiguous(), all_of_them, offsets, False, 0, False, None, True
    )[0]
    return out


class _RowsAt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(values)
        return values.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return torch.from_numpy(add_rows(grad.numpy(), index.numpy(), ctx.rows)), None


class _ListSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.nnz = len(vectors)
        return segment_sums(vectors, offsets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (offsets,) = ctx.saved_tensors
        return grads[0].index_select(0, example_of(offsets, ctx.nnz)), None


class _PerVector(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, offsets: Tensor, nnz: int) -> Tensor:
        ctx.save_for_backward(offsets)
        return rows.index_select(0, example_of(offsets, nnz))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (offsets,) = ctx.saved_tensors
        return segment_sums(grads[0], offsets), None, None


class _ListMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, offsets: Tensor) -> Tensor:
        if len(vectors):
            largest = torch.segment_reduce(vectors.contiguous(), "max", offsets=offsets)
            out = largest.masked_fill((offsets.diff() == 0).unsqueeze(1), 0.0)
        else:
            out = segment_sums(vectors, offsets)
        ctx.save_for_backward(vectors, offsets, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        vectors, offsets, out = ctx.saved_tensors
        at = example_of(offsets, len(vectors))
        largest = (vectors == out.index_select(0, at)).to(vectors.dtype)
        shares = grads[0] / segment_sums(largest, offsets).clamp(min=1)
        return largest * shares.index_select(0, at), None
