"""Matrix products of layers, in the active precision (`models.precision`) and library (`models.library`).

They are torch's operations, except where layers round their factors to bf16, or fp32 products have the
packed library: then a kernel packs both factors and sums in fp32 (`kernels.network.packed`). Products with a
dimension below 16, such as an output layer's, gain nothing and stay torch's fp32, as do small fp32 products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from livectr.kernels.network import packed
from livectr.models.library import packs
from livectr.models.precision import operands

NARROW = 16
SMALL = 1 << 21
"""Multiplications of an fp32 product below which torch is as fast: a call of the kernel costs 15 µs."""


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Product x W f32[…, O] of x f32[…, I] and weight f32[I, O]."""
    if not (operands() or packs()):
        return x @ weight
    out: Tensor = _Affine.apply(None, x.flatten(0, -2), weight)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], weight.shape[1])


def affine(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Affine map bias + x W.

    Args:
        bias: f32[O] or f32[n, O].
        x: f32[n, I]; without a gradient also f16, or bf16 where `rounds` is true.
        weight: f32[I, O].

    Returns:
        f32[n, O].
    """
    if factors(x, weight) is None:
        return torch.addmm(bias, x.to(weight.dtype), weight)
    out: Tensor = _Affine.apply(bias, x, weight)  # type: ignore[no-untyped-call]
    return out


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.summed = bias is not None and bias.dim() == 1
        return mm(x, weight) if bias is None else addmm(bias, x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_bias, needs_x, needs_weight = ctx.needs_input_grad
        return (
            (grad.sum(0) if ctx.summed else grad) if needs_bias else None,
            mm(grad, weight.t()) if needs_x else None,
            mm(x.t(), grad) if needs_weight else None,
        )


# ── without gradients, for operations whose backward pass is written by hand ──


def factors(a: Tensor, b: Tensor) -> packed.Factors | None:
    """Factors with which the kernel computes a b, [m, k] and [k, n]; None: torch computes it."""
    narrow = min(*a.shape, b.shape[1]) < NARROW
    if narrow or a.device.type != "cpu" or b.dtype != torch.float32:
        return None
    if operands():
        return "bf16" if a.dtype in (torch.float32, torch.bfloat16) else None
    large = a.shape[0] * a.shape[1] * b.shape[1] >= SMALL
    return "fp32" if large and packs() and a.dtype in (torch.float32, torch.float16) else None


def rounds(a: Tensor, b: Tensor) -> bool:
    """True if the factors of a b are rounded to bf16 here."""
    return factors(a, b) == "bf16"


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Product of a [m, k] and b f32[k, n] → f32[m, n]."""
    if (kind := factors(a, b)) is None:
        return a.to(b.dtype) @ b
    return _packed(kind, a, b, torch.empty(len(a), b.shape[1]), add=False)


def mm_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Writes the product a b into out f32[m, n], whose rows are contiguous."""
    if (kind := factors(a, b)) is None:
        torch.mm(a, b, out=out)
    else:
        _packed(kind, a, b, out, add=False)


def addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Computes bias + a b f32[m, n], with bias f32[n] or f32[m, n]."""
    if (kind := factors(a, b)) is None:
        return torch.addmm(bias, a.to(b.dtype), b)
    sums = bias.detach().expand(len(a), -1).clone(memory_format=torch.contiguous_format)
    return _packed(kind, a, b, sums, add=True)


def addmm_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a b to out f32[m, n], whose rows are contiguous."""
    if (kind := factors(a, b)) is None:
        out.addmm_(a, b)
    else:
        _packed(kind, a, b, out, add=True)


def _packed(kind: packed.Factors, a: Tensor, b: Tensor, out: Tensor, *, add: bool) -> Tensor:
    stored = a.dtype == torch.bfloat16
    left = a.detach().view(torch.uint16) if stored else a.detach()
    packed.product(left.numpy(), b.detach().numpy(), out.detach().numpy(), kind, add=add)
    return out
