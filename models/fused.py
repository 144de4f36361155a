"""Fused sub-operators and layers: few passes over their operands, with handwritten backward passes.

On a CPU, sums over fields are a kernel's (`kernels.network.field_sums`), with the products of the same rows
where `models.products` has factors for them.

Written as plain tensor operations, a step of DeepFM spends as long on copies of [B, F, K] (the vectors
without the first-order weight beside them, zeros around a slice's gradient, sums of gradients) as on sums.
Tests compare both with the plain formulas. First derivatives only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from livectr.kernels.network import field_sums as host
from livectr.kernels.network import layers as host_layers
from livectr.kernels.network.packed import Factors
from livectr.models.products import NARROW, addmm, addmm_into, factors, mm, mm_into
from livectr.models.symlog import symlog


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

        [Σ_f v_f W_f + Σ_d s(x_d) U_d | Σ_f s_f w_f + Σ_d x_d u_d − ½ Σ_f ‖v_f‖² | Σ_f v_f]

    s is `models.symlog`. FM's segments are fp32 in any precision.

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
    s = x if x is None or not weight.shape[2] else symlog(x)
    out: Tensor = _FieldSums.apply(rows, scale, weight, x, s, x_weight, u)  # type: ignore[no-untyped-call]
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
        s: Tensor | None,
        x_weight: Tensor | None,
        u: Tensor | None,
    ) -> Tensor:
        values = values.contiguous()  # models of several roles share a row
        fields, width = values.shape[1:]
        hidden = weight.shape[2]
        padded = torch.nn.functional.pad(weight, (0, 0, 1, 0)).view(fields * width, hidden)
        out = aligned_rows(values, hidden + width)
        rows, products = values.flatten(1), out[:, :hidden]
        here = of_x = None  # factors of the products that are computed with the sums
        if _on_host(values):
            here = factors(rows, padded)
            dense = None
            if x is not None and s is not None and x_weight is not None and u is not None:
                of_x = here and (factors(s, x_weight) or "fp32")
                dense = _f32(x.contiguous()), _f32(s.contiguous()), _f32(x_weight.contiguous()), _f32(u)
            host.field_sums(_f32(values), _f32(scale), _f32(padded), dense, _f32(out), here, of_x)
        else:
            torch.sum(values, 1, out=out[:, hidden:])
            out[:, hidden].sub_(values[..., 1:].square().sum((1, 2)), alpha=0.5)
            out[:, hidden].add_((values[..., 0] * (scale - 1)).sum(1))  # equal rows, equal bits: no product
            if x is not None and u is not None:
                out[:, hidden].add_((x * u).sum(1))
        if here is None:
            mm_into(products, rows, padded)
        if of_x is None and s is not None and x_weight is not None:
            addmm_into(products, s, x_weight)
        ctx.save_for_backward(values, scale, padded, x, s, x_weight, u)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, scale, padded, x, s, x_weight, u = ctx.saved_tensors
        grad = grad if grad.stride(1) == 1 else grad.contiguous()
        fields, width = values.shape[1:]
        hidden = padded.shape[1]
        grad_products, grad_sums, grad_first = grad[:, :hidden], grad[:, hidden:], grad[:, hidden, None]
        grad_values = grad_scale = grad_weight = grad_x = grad_s = grad_x_weight = grad_u = None
        if ctx.needs_input_grad[0] and _on_host(values):
            grad_values, grad_scale = torch.empty_like(values), torch.empty_like(scale)
            here = factors(grad_products, padded.t())
            operands, found = (_f32(values), _f32(scale), _f32(padded)), (_f32(grad_values), _f32(grad_scale))
            host.field_gradients(*operands, _f32(grad), *found, here)
            if here is None:
                addmm_into(grad_values.view(len(values), fields * width), grad_products, padded.t())
        elif ctx.needs_input_grad[0]:
            slope = -grad_first.repeat(1, width)
            slope[:, 0] = 0.0
            grad_values = torch.addcmul(grad_sums.unsqueeze(1), slope.unsqueeze(1), values)
            grad_values[..., 0].addcmul_(grad_first, scale - 1)
            addmm_into(grad_values.view(len(values), fields * width), grad_products, padded.t())
        if ctx.needs_input_grad[1] and grad_scale is None:
            grad_scale = values[..., 0].t() @ grad[:, hidden]
        if ctx.needs_input_grad[2]:
            grad_weight = mm(values.flatten(1).t(), grad_products).view(fields, width, hidden)[:, 1:]
        if x is not None:
            if ctx.needs_input_grad[3]:
                grad_x, grad_s = grad_first * u, mm(grad_products, x_weight.t())
            grad_x_weight = mm(s.t(), grad_products)
            grad_u = (grad_first * x).sum(0)
        return grad_values, grad_scale, grad_weight, grad_x, grad_s, grad_x_weight, grad_u


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
    @staticmethod
    def forward(ctx: Any, x: Tensor, first_bias: Tensor, *layers: Tensor) -> Tensor:
        out, inputs = _layers(x, first_bias, layers)
        ctx.save_for_backward(*inputs, *layers)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        count = len(ctx.saved_tensors) // 3
        if not count:
            return grad, grad.sum(0)
        inputs, layers = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        of_x = torch.empty_like(inputs[0])
        return of_x, *_layer_gradients(grad, inputs[0], inputs, layers, of_x)


def perceptron_and_pairs(sums: Tensor, first_bias: Tensor, *layers: Tensor) -> Tensor:
    """MLP after the first layer, plus FM's substitution (DES eq. 6): the gradient of both is one tensor.

    Args:
        sums: f32[B, H₁ + 1 + K], results of `field_sums`.
        first_bias: as of `perceptron`.
        layers: as of `perceptron`, with a single last unit; at least one layer.

    Returns:
        f32[B], MLP + Σ s w − ½ Σ ‖v‖² + ½ ‖Σ v‖².
    """
    out: Tensor = _PerceptronAndPairs.apply(sums, first_bias, *layers)  # type: ignore[no-untyped-call]
    return out


class _PerceptronAndPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: Tensor, first_bias: Tensor, *layers: Tensor) -> Tensor:
        out, inputs = _layers(sums, first_bias, layers)
        ctx.save_for_backward(sums, *inputs, *layers)
        return out.squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        sums, *saved = ctx.saved_tensors
        count = len(saved) // 3
        of_sums = aligned_rows(sums, sums.shape[1])
        rest = _layer_gradients(grad.unsqueeze(1), sums, saved[:count], saved[count:], of_sums)
        return of_sums, *rest


def _layers(sums: Tensor, first_bias: Tensor, layers: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """MLP's output, with FM's substitution if numbers for it follow; and the activated input of each layer.

    Args:
        sums: f32[B, H₁] or f32[B, H₁ + 1 + K].
        first_bias: as of `perceptron`.
        layers: as of `perceptron`.
    """
    weights, hidden = layers[::2], len(first_bias)
    inputs = [sums.new_empty(len(sums), len(weight)) for weight in weights]
    if (kinds := _kinds(sums, inputs, layers)) is not None:
        out = sums.new_empty(len(sums), weights[-1].shape[1])
        given = _f32(sums), _f32(first_bias), _of_kinds(layers, kinds), [_f32(x) for x in inputs], _f32(out)
        host_layers.forward(*given, pairs=sums.shape[1] - hidden - 1)
        return out, inputs
    x, inputs = sums[:, :hidden] + first_bias, []
    for weight, bias in zip(weights, layers[1::2], strict=True):
        inputs.append(x.relu_())
        x = addmm(bias, x, weight)
    if sums.shape[1] > hidden:
        pairs = sums[:, hidden + 1 :].square().sum(1, keepdim=True)
        x.add_(sums[:, hidden, None]).add_(pairs, alpha=0.5)
    return x, inputs


def _layer_gradients(
    grad: Tensor, sums: Tensor, inputs: Sequence[Tensor], layers: Sequence[Tensor], of_sums: Tensor
) -> list[Tensor]:
    """Gradients of first bias, weights and biases, for f32[B, O]; writes that of `sums`."""
    hidden, of_layers = inputs[0].shape[1], list[Tensor]()
    pairs = sums.shape[1] - hidden - 1
    if (kinds := _kinds(sums, inputs, layers)) is not None:
        grad, of_results = grad.contiguous(), [torch.empty_like(x) for x in inputs[1:]]
        given = _f32(grad), _of_kinds(layers, kinds), [_f32(x) for x in inputs], _f32(sums), _f32(of_sums)
        found = host_layers.backward(*given, [_f32(of) for of in of_results], pairs=pairs)
        first, *rest = map(torch.from_numpy, found)
        for x, of, kind in zip(inputs, [*of_results, grad], kinds, strict=True):
            of_bias = rest.pop(0)
            of_layers += [mm(x.t(), of) if kind else rest.pop(0), of_bias]
        return [first, *of_layers]
    if pairs >= 0:
        of_sums[:, hidden] = grad[:, 0]
        torch.mul(sums[:, hidden + 1 :], grad, out=of_sums[:, hidden + 1 :])
    of_x = of_sums[:, :hidden]
    for i in reversed(range(len(inputs))):
        x, weight = inputs[i], layers[2 * i]
        of_layers[:0] = [mm(x.t(), grad), grad.sum(0)]
        into = torch.empty_like(x) if i else of_x
        mm_into(into, grad, weight.t())
        grad = torch.ops.aten.threshold_backward.grad_input(into, x, 0, grad_input=into)
    return [of_x.sum(0), *of_layers]


def _kinds(sums: Tensor, inputs: Sequence[Tensor], layers: Sequence[Tensor]) -> list[Factors | None] | None:
    """Factors of each layer, none of a narrow one, for the host's kernel; None: torch computes the layers."""
    if not _on_host(sums, *layers) or sums.stride(1) != 1 or not all(t.is_contiguous() for t in layers):
        return None
    narrow = [min(weight.shape) < NARROW for weight in layers[::2]]
    kinds = [
        None if small else factors(x, w) for x, w, small in zip(inputs, layers[::2], narrow, strict=True)
    ]
    wide = [kind for kind, small in zip(kinds, narrow, strict=True) if not small]
    return kinds if wide and all(wide) else None


def _of_kinds(layers: Sequence[Tensor], kinds: Sequence[Factors | None]) -> list[host_layers.Layer]:
    each = zip(layers[::2], layers[1::2], kinds, strict=True)
    return [host_layers.Layer(_f32(weight), _f32(bias), kind) for weight, bias, kind in each]


def aligned_rows(like: Tensor, width: int) -> Tensor:
    """Uninitialised [B, width], its rows whole cache lines apart: products write them faster."""
    line = 64 // like.element_size()
    return like.new_empty_strided((len(like), width), (-(-width // line) * line, 1))


def _f32(tensor: Tensor) -> host.F32:
    """View of a host tensor."""
    return tensor.detach().numpy()


def _on_host(*tensors: Tensor) -> bool:
    """True if the kernels of `kernels.network.field_sums` take these tensors."""
    return all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
