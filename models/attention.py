"""The local activation unit of DIN (Zhou et al., KDD 2018): a list of vectors, looked at from a query.

    pooled = Σ_b a(v_b, q) v_b                     the weights need not sum to 1
    a = MLP([v_b, q, v_b − q, v_b ∘ q])            with PReLU

The first layer is split, with blocks W_v, W_q, W_d, W_p of its matrix:

    [v, q, v − q, v ∘ q] W = v (W_v + W_d) + (v ∘ q) W_p + q (W_q − W_d)

so that the last term is computed once a sample. On a CPU, `CHUNK` samples go through the whole unit while
what is between two products, a list's length times a layer's width, stays in the cache; the backward pass is
written by hand and keeps the sums before PReLU only.

Where all queries look at one list, as in a request, (v ∘ q) W_p + q (W_q − W_d) is q times one matrix for
the whole list.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.base import Ragged
from models.layers import matrix
from models.ragged import sample_of, segment_sums

ONE_LIST = 1 << 16
"""Values of the first layer that are made at once on a CPU, where all queries look at one list."""
CHUNK = 128
"""Samples that go through a unit at once on a CPU."""


class ActivationUnit(nn.Module):
    """a(v, q) of vectors of `dim` float32: hidden layers of the `widths`, each of their units with a slope of
    PReLU that starts at ¼."""

    def __init__(self, name: str, dim: int, widths: Sequence[int], seed: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise((4 * dim, *widths, 1)))
        self.weights = nn.ParameterList(matrix(seed, f"{name}.{i}", a, b) for i, (a, b) in enumerate(pairs))
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs)
        self.slopes = nn.ParameterList(torch.full((b,), 0.25) for b in widths)

    def forward(self, seen: Ragged, query: Tensor) -> Tensor:
        """Lists of vectors f32[nnz, K], query f32[B, K] → Σ a(v, q) v, f32[B, K]; 0 for an empty list."""
        parameters = list(self.weights), list(self.biases), list(self.slopes)
        if seen.same and not torch.is_grad_enabled():
            return looked_at(seen.values[: int(seen.offsets[1])], query, *parameters)
        return attended(seen, query, *parameters)


def attended(
    seen: Ragged,
    query: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    slopes: Sequence[Tensor],
) -> Tensor:
    """Lists of f32[nnz, K], query f32[B, K] → pooled f32[B, K]; see the module's docstring.

    weights f32[4 K, H₁], f32[H₁, H₂] … f32[H_L, 1]; biases f32[H₁] … f32[1]; slopes f32[H₁] … f32[H_L].
    Derivatives are first ones only.
    """
    out: Tensor = _Attended.apply(  # type: ignore[no-untyped-call]
        seen.values, seen.offsets, query, *weights, *biases, *slopes
    )
    return out


def looked_at(
    v: Tensor, query: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], slopes: Sequence[Tensor]
) -> Tensor:
    """`attended` of one list v f32[L, K], at which every query f32[B, K] looks; without gradients."""
    first = _First(weights[0])
    rows, hidden = v.shape[0], first.of_vector.shape[1]
    if not rows:
        return torch.zeros_like(query)
    of_list = torch.addmm(biases[0], v, first.of_vector).reshape(-1)
    both = v.t().unsqueeze(2) * first.of_product.unsqueeze(1) + first.of_query.unsqueeze(1)
    of_query = both.reshape(-1, rows * hidden)
    out = torch.empty_like(query)
    size = max(1, ONE_LIST // (rows * hidden)) if query.device.type == "cpu" else max(1, len(query))
    for q, part in zip(torch.split(query, size), torch.split(out, size), strict=True):
        x = torch.addmm(of_list, q, of_query).view(-1, hidden)
        for slope, weight, bias in zip(slopes, weights[1:], biases[1:], strict=True):
            x = torch.addmm(bias, torch.prelu(x, slope), weight)
        torch.mm(x.view(-1, rows), v, out=part)
    return out


class _First:
    """The first layer's blocks: `of_vector` W_v + W_d, `of_product` W_p, `of_query` W_q − W_d."""

    def __init__(self, weight: Tensor) -> None:
        v, q, d, p = weight.chunk(4)
        self.of_vector, self.of_product, self.of_query = v + d, p, q - d


@dataclass(frozen=True)
class _Chunk:
    """Some samples: which, their vectors among all, each vector's sample, the sums before each PReLU, and a.

    offsets: their own, i64[n_samples + 1]. sums: f32[n, H] of each layer. a: f32[n, 1].
    """

    samples: slice
    vectors: slice
    offsets: Tensor
    at: Tensor
    sums: list[Tensor]
    a: Tensor


def _chunks(offsets: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Samples, their vectors, and their own offsets."""
    rows = len(offsets) - 1
    size = CHUNK if offsets.device.type == "cpu" else max(rows, 1)
    starts = range(0, rows, size)
    ends = offsets[[*starts, rows]].tolist()
    for start, (first, last) in zip(starts, itertools.pairwise(ends), strict=True):
        if first < last:
            samples = slice(start, min(start + size, rows))
            yield samples, slice(first, last), offsets[start : samples.stop + 1] - first


def _split(parameters: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """Weights, biases and slopes."""
    layers = (len(parameters) + 1) // 3
    return parameters[:layers], parameters[layers : 2 * layers], parameters[2 * layers :]


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, query: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases, slopes = _split(parameters)
        first = _First(weights[0])
        out = torch.zeros_like(query)
        ctx.chunks = []
        for samples, vectors, own in _chunks(offsets):
            at, v = sample_of(own), values[vectors]
            x = torch.addmm(biases[0], query[samples], first.of_query).index_select(0, at)
            x.addmm_(v, first.of_vector).addmm_(query[samples].index_select(0, at).mul_(v), first.of_product)
            sums = []
            for slope, weight, bias in zip(slopes, weights[1:], biases[1:], strict=True):
                sums.append(x)
                x = torch.addmm(bias, torch.prelu(x, slope), weight)
            out[samples] = segment_sums(v, own, x.squeeze(1))
            if any(ctx.needs_input_grad):
                ctx.chunks.append(_Chunk(samples, vectors, own, at, sums, x))
        ctx.save_for_backward(values, query, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, query, *parameters = ctx.saved_tensors
        weights, _, slopes = _split(parameters)
        first = _First(weights[0])
        of_values, of_query = torch.zeros_like(values), torch.zeros_like(query)
        of_blocks = [torch.zeros_like(first.of_query) for _ in range(3)]
        of_weights, of_biases, of_slopes = _split([torch.zeros_like(one) for one in parameters])
        for chunk in ctx.chunks:
            v, q_own = values[chunk.vectors], query[chunk.samples]
            q, of_pooled = (rows.index_select(0, chunk.at) for rows in (q_own, grad[chunk.samples]))
            of_x = (of_pooled * v).sum(1, keepdim=True)
            for i in reversed(range(len(slopes))):
                x, slope = chunk.sums[i], slopes[i]
                of_weights[i + 1].addmm_(torch.prelu(x, slope).t(), of_x)
                of_biases[i + 1].add_(of_x.sum(0))
                of_x = of_x @ weights[i + 1].t()
                of_slopes[i].add_((of_x * x.clamp_max(0)).sum(0))
                above = torch.ops.aten.threshold_backward(of_x, x, 0)
                of_x = torch.lerp(above, of_x, slope)  # several times as fast as PReLU's own
            of_sample = segment_sums(of_x, chunk.offsets)
            of_biases[0].add_(of_sample.sum(0))
            for block, rows, of_rows in zip(
                of_blocks, (v, v * q, q_own), (of_x, of_x, of_sample), strict=True
            ):
                block.addmm_(rows.t(), of_rows)
            of_product = of_x @ first.of_product.t()
            to_query = segment_sums(of_product * v, chunk.offsets)
            of_query[chunk.samples] = to_query.addmm_(of_sample, first.of_query.t())
            of_v = torch.mm(of_x, first.of_vector.t(), out=of_values[chunk.vectors])
            of_v.addcmul_(of_product, q).addcmul_(of_pooled, chunk.a)
        v, product, to_first = of_blocks
        torch.cat([v, to_first, v - to_first, product], out=of_weights[0])
        return of_values, None, of_query, *of_weights, *of_biases, *of_slopes
