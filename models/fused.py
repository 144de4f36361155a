"""Fused sub-operators and layers: few passes over their operands, with handwritten backward passes.

Written as plain tensor operations, a step of DeepFM spends as long on copies of [B, F, K] (the vectors
without the first-order weight beside them, zeros around a slice's gradient, sums of gradients) as on sums.
Tests compare both with the plain formulas. First derivatives only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from livectr.models.products import addmm, addmm_into, mm, mm_into


def field_sums(
    values: Tensor,
    scale: Tensor,
    weight: Tensor,
    x: Tensor | None,
    x_weight: Tensor | None,
    u: Tensor | None,
    *,
    pairs: bool = True,
) -> Tensor:
    """Partial results of FM and a first layer, from rows [w | v] and dense features x (DES eq. 5 and 8).

        [Σ_f v_f W_f + Σ_d x_d U_d | Σ_f s_f w_f + Σ_d x_d u_d − ½ Σ_f ‖v_f‖² | Σ_f v_f]

    FM's segments are fp32 in any precision.

    Args:
        values: f32[B, F, 1 + K].
        scale: s, f32[F].
        weight: W, f32[F, K, H]; H may be 0.
        x: f32[B, Dd]; x, x_weight and u are all given or all None.
        x_weight: U, f32[Dd, H].
        u: f32[Dd].
        pairs: backward has the rows' gradient of all segments; False: that of the products alone.

    Returns:
        f32[B, H + 1 + K].
    """
    rows = values if pairs else values.detach()
    out: Tensor = _FieldSums.apply(rows, scale, weight, x, x_weight, u)  # type: ignore[no-untyped-call]
    if not pairs:
        out = _ProductsOfRows.apply(out, values, weight)  # type: ignore[no-untyped-call]
    return out


class _ProductsOfRows(torch.autograd.Function):
    """Results of `_FieldSums`, as they are; backward has the products' gradient by the rows beside it."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.mark_dirty(sums)  # not a view: callers add to it
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (weight,) = ctx.saved_tensors
        fields, dim, hidden = weight.shape
        padded = torch.nn.functional.pad(weight, (0, 0, 1, 0)).view(fields * (1 + dim), hidden)
        return grad, mm(grad[:, :hidden], padded.t()).view(len(grad), fields, 1 + dim), None


class _FieldSums(torch.autograd.Function):
    """Products of rows as they are, with w times zeros: cheaper than a copy of the vectors alone.

    With gradients g of the three segments, the gradients of w_f, v_f, s_f and W_f are
    s_f g₂,  g₁ W_fᵀ + g₃ − g₂ v_f,  w_fᵀ g₂  and  v_fᵀ g₁. The sum over fields has w_f already: s_f − 1 of it
    is added.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        scale: Tensor,
        weight: Tensor,
        x: Tensor | None,
        x_weight: Tensor | None,
        u: Tensor | None,
    ) -> Tensor:
        values = values.contiguous()  # models of several roles share a row
        fields, width = values.shape[1:]
        hidden = weight.shape[2]
        padded = torch.nn.functional.pad(weight, (0, 0, 1, 0)).view(fields * width, hidden)
        out = values.new_empty(len(values), hidden + width)
        torch.sum(values, 1, out=out[:, hidden:])
        out[:, hidden].sub_(values[..., 1:].square().sum((1, 2)), alpha=0.5)
        out[:, hidden].add_((values[..., 0] * (scale - 1)).sum(1))  # equal rows, equal bits: no product
        mm_into(out[:, :hidden], values.flatten(1), padded)
        if x is not None and x_weight is not None and u is not None:
            addmm_into(out[:, :hidden], x, x_weight)
            out[:, hidden].add_((x * u).sum(1))
        ctx.save_for_backward(values, scale, padded, x, x_weight, u)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, scale, padded, x, x_weight, u = ctx.saved_tensors
        fields, width = values.shape[1:]
        hidden = padded.shape[1]
        grad_products, grad_sums, grad_first = grad[:, :hidden], grad[:, hidden:], grad[:, hidden, None]
        grad_values = grad_scale = grad_weight = grad_x = grad_x_weight = grad_u = None
        if ctx.needs_input_grad[0]:
            slope = -grad_first.repeat(1, width)
            slope[:, 0] = 0.0
            grad_values = torch.addcmul(grad_sums.unsqueeze(1), slope.unsqueeze(1), values)
            grad_values[..., 0].addcmul_(grad_first, scale - 1)
            addmm_into(grad_values.view(len(values), fields * width), grad_products, padded.t())
        if ctx.needs_input_grad[1]:
            grad_scale = values[..., 0].t() @ grad[:, hidden]
        if ctx.needs_input_grad[2]:
            grad_weight = mm(values.flatten(1).t(), grad_products).view(fields, width, hidden)[:, 1:]
        if x is not None:
            if ctx.needs_input_grad[3]:
                grad_x = addmm(grad_first * u, grad_products, x_weight.t())
            grad_x_weight = mm(x.t(), grad_products)
            grad_u = (grad_first * x).sum(0)
        return grad_values, grad_scale, grad_weight, grad_x, grad_x_weight, grad_u


def perceptron(x: Tensor, first_bias: Tensor, *layers: Tensor) -> Tensor:
    """MLP after the first layer: relu(x + b₁) W₂ + b₂ …, the last layer without activation.

    Args:
        x: f32[B, H₁].
        first_bias: f32[H₁].
        layers: weight f32[H, H'] and bias f32[H'] of each layer, in turn.

    Returns:
        f32[B, H_L].
    """
    out: Tensor = _Perceptron.apply(x, first_bias, *layers)  # type: ignore[no-untyped-call]
    return out


class _Perceptron(torch.autograd.Function):
    """Activations and their gradients overwrite sums and gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first_bias: Tensor, *layers: Tensor) -> Tensor:
        x = x + first_bias
        inputs = []
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            inputs.append(x.relu_())
            x = addmm(bias, x, weight)
        ctx.save_for_backward(*inputs, *layers[::2])
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        count = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        grad_layers: list[Tensor] = []
        for x, weight in zip(reversed(inputs), reversed(weights), strict=True):
            grad_layers[:0] = [mm(x.t(), grad), grad.sum(0)]
            grad = mm(grad, weight.t())
            torch.ops.aten.threshold_backward.grad_input(grad, x, 0, grad_input=grad)
        return grad, grad.sum(0), *grad_layers
