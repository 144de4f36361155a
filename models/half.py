"""First layer on float16 features: x W + b, where x is stored as float16 and W is float32.

In fp32 (`models.precision`) the product is float32: the packed kernel reads x as it is, and torch's products
read a float32 copy. Where products may be reduced, x stays float16 and is multiplied by W and by gradients
rounded to float16 (11 bits of mantissa; bf16 has 8). Products of 1,024 rows each are summed in float32. No
float32 copy of x is made, and CPUs with AMX or AVX512-FP16 multiply several times as fast. Gradients are
scaled by a power of two, so that they neither vanish nor overflow. Where layers round their factors to bf16
(`models.products`), x is kept as bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from livectr.models.precision import operands
from livectr.models.products import affine, factors, rounds

ROWS = 1024
"""Rows of a product of gradients. With the largest gradient scaled to ½, its sums stay below float16's
largest number, 65,504, for features up to 127.
"""


def half_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Affine map of features that get no gradient.

    Args:
        x: f16 or f32 [n, I].
        weight: f32[I, O].
        bias: f32[O].

    Returns:
        f32[n, O].
    """
    if x.dtype == torch.float16 and len(x) and reduced(x.device):
        out: Tensor = _HalfLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return out
    if x.dtype == torch.float16 and operands() and rounds(stored := x.bfloat16(), weight):
        return affine(bias, stored, weight)
    if x.dtype == torch.float16 and factors(x, weight) == "fp32":
        return affine(bias, x, weight)
    return affine(bias, x.float(), weight)


def reduced(device: torch.device) -> bool:
    """True if products may be float16 here: oneDNN reduces them, and supports float16."""
    if device.type == "cuda":
        return torch.backends.cuda.matmul.fp32_precision == "tf32"  # type: ignore[no-any-return]
    wanted = torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # type: ignore[attr-defined]
    return wanted and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


class _HalfLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        out = (x @ weight.half()).float()
        if not torch.isfinite(out.sum()):  # a sum overflows float16: compute in float32
            out = x.float() @ weight
        return out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return None, _products(x, grad), grad.sum(0)


def _products(x: Tensor, grad: Tensor) -> Tensor:
    """Product xᵀ grad of f16[n, I] and f32[n, O] → f32[I, O]."""
    largest = float(grad.abs().max())
    out = grad.new_zeros(x.shape[1], grad.shape[1])
    if not 0 < largest < float("inf"):
        return out if largest == 0 else x.float().t() @ grad  # not finite: the step reports it
    scale = 2.0 ** -(torch.frexp(torch.tensor(largest)).exponent.item() + 1)
    for start in range(0, len(x), ROWS):
        part = slice(start, start + ROWS)
        product = (x[part].t() @ (grad[part] * scale).half()).float()
        if not torch.isfinite(product.sum()):
            product = x[part].float().t() @ (grad[part] * scale)
        out.add_(product)
    return out.div_(scale)
