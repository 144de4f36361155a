"""The arithmetic of a network's matrix products: fp32, or bf16 products summed in fp32.

In bf16 the factors of a product are rounded to 8 bits of mantissa, forward and backward; what is multiplied
is summed, and given back, in fp32. Everything else stays fp32: master weights, biases, activations, the sums
that cross ranks, FM's second order, loss, optimisers.

oneDNN rounds inside its kernels. That makes a training step as fast as casts to bfloat16 tensors do, which
would round each product's result too, and which every layer would have to write. CPUs with AVX512-BF16 or
AMX gain; others compute in fp32, whatever is asked. GPUs use TF32, whose mantissa has 11 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

Precision = Literal["fp32", "bf16"]


@contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Products inside are computed so; what was before holds again behind it.

    A backward pass takes the precision that holds where it is called, so put it inside too. The setting is
    the process', not the thread's. Raises ValueError for another name.
    """
    if name not in get_args(Precision):
        raise ValueError(f"precision is {name!r}, but must be one of {', '.join(get_args(Precision))}")
    settings = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    for setting, reduced in zip(settings, ("bf16", "tf32"), strict=True):
        setting.fp32_precision = reduced if name == "bf16" else "ieee"
    try:
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value
