"""The arithmetic of a network's matrix products: fp32, or bf16 products summed in fp32.

In bf16 the factors of a product are rounded to 8 bits of mantissa, forward and backward; what is multiplied
is summed, and given back, in fp32. Everything else stays fp32: master weights, biases, activations, the sums
that cross ranks, FM's second order, loss, optimisers.

There are two ways to bf16 on a CPU, and the process takes the first that gives it. A product of known numbers
tells; no list of CPUs does:

    onednn     oneDNN rounds fp32 factors inside its kernels. It does so for AMX alone: elsewhere it takes the
               setting and computes in fp32.
    operands   layers round and multiply by themselves (`models.products`), on CPUs with AVX512-BF16.

Speed decides nothing, since a time differs from run to run, and the bits of a model must not. CPUs with
neither method compute in fp32, which `arithmetic_name` says. GPUs use TF32, whose mantissa has 11 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from livectr.kernels.network import bf16

Precision = Literal["fp32", "bf16"]
ProductMethod = Literal["fp32", "onednn", "operands"]

_NAMES: dict[ProductMethod, str] = {"fp32": "fp32", "onednn": "bf16 (oneDNN)", "operands": "bf16 operands"}
_MKLDNN, _CUDA = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # type: ignore[attr-defined]

_operands = False


@contextmanager
def precision(name: Precision, *, method: ProductMethod | None = None) -> Iterator[None]:
    """Products inside are computed so; what was before holds again behind it.

    A backward pass takes the precision that holds where it is called, so put it inside too. The setting is
    the process', not the thread's. method: of bf16 on the CPU; None: the measured one. Raises ValueError for
    another name.
    """
    if name not in get_args(Precision):
        raise ValueError(f"precision is {name!r}, but must be one of {', '.join(get_args(Precision))}")
    if name == "fp32":
        method = "fp32"
    with _set(method or measured_method(), "ieee" if name == "fp32" else "tf32"):
        yield


@contextmanager
def _set(method: ProductMethod, cuda: str) -> Iterator[None]:
    global _operands
    before = _operands, _MKLDNN.fp32_precision, _CUDA.fp32_precision
    _operands, _CUDA.fp32_precision = method == "operands", cuda
    _MKLDNN.fp32_precision = "bf16" if method == "onednn" else "ieee"
    try:
        yield
    finally:
        _operands, _MKLDNN.fp32_precision, _CUDA.fp32_precision = before


def operands() -> bool:
    """Tells whether layers on the CPU are to round their factors to bf16 by themselves."""
    return _operands


@functools.cache
def measured_method() -> ProductMethod:
    """The bf16 method of this CPU, measured once a process. Compiles a kernel where oneDNN has no effect."""
    # 1 + 2⁻⁹ is 1 in bf16, which has 8 bits of mantissa, and a sum of 257 ones is itself in fp32 alone.
    a, b = torch.full((256, 257), 1 + 2.0**-9), torch.ones(257, 128)
    with _set("onednn", _CUDA.fp32_precision):
        if bool(((a @ b) == 257).all()):
            return "onednn"
    out = bf16.product(a.numpy(), b.numpy(), torch.empty(256, 128).numpy())
    return "operands" if bf16.native() and bool((out == 257).all()) else "fp32"


def arithmetic_name(name: Precision, device: torch.device) -> str:
    """Names the arithmetic that `precision(name)` gives there: "fp32", "bf16 (oneDNN)", "bf16 operands" or
    "tf32"."""
    if name == "fp32":
        return "fp32"
    return "tf32" if device.type == "cuda" else _NAMES[measured_method()]
