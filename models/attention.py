"""The local activation unit of DIN (Zhou et al., KDD 2018): a list of vectors, looked at from a query.

    pooled = Σ_b a(v_b, q) v_b                     the weights need not sum to 1
    a = MLP([v_b, q, v_b − q, v_b ∘ q])            with PReLU

The first layer is split, with blocks W_v, W_q, W_d, W_p of its matrix:

    [v, q, v − q, v ∘ q] W = v (W_v + W_d) + (v ∘ q) W_p + q (W_q − W_d)

so that nothing is put side by side, and the last term is computed once a sample. What is between two
products is as long as the list is, times a layer's width: on a CPU, `CHUNK` samples go through the whole unit
while that stays in its cache, and the backward pass computes it again in place of keeping it.
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
        return attended(seen, query, list(self.weights), list(self.biases), list(self.slopes))


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


@dataclass(frozen=True)
class _Unit:
    """Parameters of a unit, its first layer split."""

    of_vector: Tensor  # W_v + W_d
    of_product: Tensor  # W_p
    of_query: Tensor  # W_q − W_d
    weights: tuple[Tensor, ...]  # all, the first whole
    biases: tuple[Tensor, ...]
    slopes: tuple[Tensor, ...]

    @staticmethod
    def of(parameters: Sequence[Tensor]) -> _Unit:
        layers = (len(parameters) + 1) // 3
        v, q, d, p = parameters[0].chunk(4)
        return _Unit(
            v + d,
            p.contiguous(),
            q - d,
            tuple(parameters[:layers]),
            tuple(parameters[layers : 2 * layers]),
            tuple(parameters[2 * layers :]),
        )


@dataclass(frozen=True)
class _Chunk:
    """Some samples' vectors v f32[n, K], with each one's sample and its query, and what the unit makes of
    them: sums before PReLU, inputs of the layers behind the first, and a f32[n, 1]."""

    at: Tensor
    v: Tensor
    q: Tensor
    sums: list[Tensor]
    inputs: list[Tensor]
    a: Tensor

    @staticmethod
    def of(unit: _Unit, v: Tensor, query: Tensor, offsets: Tensor) -> _Chunk:
        at = sample_of(offsets)
        q = query.index_select(0, at)
        x = torch.addmm(unit.biases[0], query, unit.of_query).index_select(0, at)
        x.addmm_(v, unit.of_vector).addmm_(v * q, unit.of_product)
        sums, inputs = [], []
        for slope, weight, bias in zip(unit.slopes, unit.weights[1:], unit.biases[1:], strict=True):
            sums.append(x)
            inputs.append(torch.prelu(x, slope))
            x = torch.addmm(bias, inputs[-1], weight)
        return _Chunk(at, v, q, sums, inputs, x)


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


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, query: Tensor, *parameters: Tensor) -> Tensor:
        unit = _Unit.of(parameters)
        out = torch.zeros_like(query)
        for samples, vectors, own in _chunks(offsets):
            chunk = _Chunk.of(unit, values[vectors], query[samples], own)
            out[samples] = segment_sums(chunk.a * chunk.v, own)
        ctx.save_for_backward(values, offsets, query, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, offsets, query, *parameters = ctx.saved_tensors
        unit = _Unit.of(parameters)
        of_values, of_query = torch.zeros_like(values), torch.zeros_like(query)
        first = [torch.zeros_like(unit.of_vector) for _ in range(3)]
        weights, biases, slopes = (
            [torch.zeros_like(one) for one in some] for some in (unit.weights, unit.biases, unit.slopes)
        )
        for samples, vectors, own in _chunks(offsets):
            q_own = query[samples]
            chunk = _Chunk.of(unit, values[vectors], q_own, own)
            v, q = chunk.v, chunk.q
            of_pooled = grad[samples].index_select(0, chunk.at)
            of_x = (of_pooled * v).sum(1, keepdim=True)
            for i in reversed(range(len(slopes))):
                weights[i + 1].addmm_(chunk.inputs[i].t(), of_x)
                biases[i + 1].add_(of_x.sum(0))
                of_input = of_x @ unit.weights[i + 1].t()
                of_x, of_slope = torch.ops.aten._prelu_kernel_backward(
                    of_input, chunk.sums[i], unit.slopes[i]
                )
                slopes[i].add_(of_slope.sum(0))
            of_sample = segment_sums(of_x, own)
            of_product = of_x @ unit.of_product.t()
            first[0].addmm_(v.t(), of_x)
            first[1].addmm_((v * q).t(), of_x)
            first[2].addmm_(q_own.t(), of_sample)
            biases[0].add_(of_sample.sum(0))
            of_query[samples] = segment_sums(of_product * v, own).addmm_(of_sample, unit.of_query.t())
            of_v = torch.mm(of_x, unit.of_vector.t(), out=of_values[vectors])
            of_v.addcmul_(of_product, q).addcmul_(of_pooled, chunk.a)
        weights[0] = torch.cat([first[0], first[2], first[0] - first[2], first[1]])
        return of_values, None, of_query, *weights, *biases, *slopes
