"""Matrix products whose factors are rounded to bf16, told from products in fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from livectr.models.precision import ProductMethod, precision
from livectr.models.products import product


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def is_rounded(method: ProductMethod | None) -> bool:
    """A product of 256 x 512 numbers: its factors are rounded to bf16, or it is fp32's; nothing between."""
    a, b = random(256, 512), random(512, 128, seed=1)
    with precision("bf16", method=method):
        out = product(a, b)
    assert out.dtype == torch.float32
    if torch.equal(out, a @ b):
        return False
    rounded = a.bfloat16().double() @ b.bfloat16().double()
    try:
        torch.testing.assert_close(out.double(), rounded, rtol=1e-5, atol=1e-4)
    except AssertionError:  # oneDNN may sum fp32 in another order
        torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)
        return False
    return True
