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
    weight: Tensor,
    x: Tensor | None,
    x_weight: Tensor | None,
    u: Tensor | None,
    *,
    pairs: bool = True,
) -> Tensor:
    """Partial results of FM and a first layer, from rows [w | v] and dense features x (DES eq. 5 and 8).

        [Σ_f v_f W_f + Σ_d x_d U_d | Σ_f w_f + Σ_d x_d u_d − ½ Σ_f ‖v_f‖² | Σ_f v_f]

    FM's segments are fp32 in any precision.

    Args:
        values: f32[B, F, 1 + K].
        weight: W, f32[F, K, H]; H may be 0.
        x: f32[B, Dd]; x, x_weight and u are all given or all None.
        x_weight: U, f32[Dd, H].
        u: f32[Dd].
        pairs: backward has the rows' gradient of all segments; False: that of the products alone.

    Returns:
        f32[B, H + 1 + K].
    """
    out: Tensor = _FieldSums.apply(values, weight, x, x_weight, u, pairs)  # type: ignore[no-untyped-call]
    return out


class _FieldSums(torch.autograd.Function):
    """Products of rows as they are, with w times zeros: cheaper than a copy of the vectors alone.

    With gradients g of the three segments, the gradients of w_f, v_f and W_f are  g₂,  g₁ W_fᵀ + g₃ − g₂ v_f
    and  v_fᵀ g₁.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor,
        x: Tensor | None,
        x_weight: Tensor | None,
        u: Tensor | None,
        pairs: bool,
    ) -> Tensor:
        values = values.contiguous()  # models of several roles share a row
        fields, width = values.shape[1:]
        hidden = weight.shape[2]
        padded = torch.nn.functional.pad(weight, (0, 0, 1, 0)).view(fields * width, hidden)
        out = values.new_empty(len(values), hidden + width)
        torch.sum(values, 1, out=out[:, hidden:])
        out[:, hidden].sub_(values[..., 1:].square().sum((1, 2)), alpha=0.5)
        mm_into(out[:, :hidden], values.flatten(1), padded)
        if x is not None and x_weight is not None and u is not None:
            addmm_into(out[:, :hidden], x, x_weight)
            out[:, hidden].add_((x * u).sum(1))
        ctx.save_for_backward(values, padded, x, x_weight, u)
        ctx.pairs = pairs
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, padded, x, x_weight, u = ctx.saved_tensors
        fields, width = values.shape[1:]
        hidden = padded.shape[1]
        grad_products, grad_sums, grad_first = grad[:, :hidden], grad[:, hidden:], grad[:, hidden, None]
        grad_values = grad_weight = grad_x = grad_x_weight = grad_u = None
        if ctx.needs_input_grad[0]:
            if ctx.pairs:
                slope = -grad_first.repeat(1, width)
                slope[:, 0] = 0.0
                grad_values = torch.addcmul(grad_sums.unsqueeze(1), slope.unsqueeze(1), values)
                addmm_into(grad_values.view(len(values), fields * width), grad_products, padded.t())
            else:
                grad_values = mm(grad_products, padded.t()).view(len(values), fields, width)
        if ctx.needs_input_grad[1]:
            grad_weight = mm(values.flatten(1).t(), grad_products).view(fields, width, hidden)[:, 1:]
        if x is not None:
            if ctx.needs_input_grad[2]:
                grad_x = addmm(grad_first * u, grad_products, x_weight.t())
            grad_x_weight = mm(x.t(), grad_products)
            grad_u = (grad_first * x).sum(0)
        return grad_values, grad_weight, grad_x, grad_x_weight, grad_u, None


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
