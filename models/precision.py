"""Precision of a network's matrix products: fp32, or bf16 products summed in fp32.

In bf16 the factors of a product are rounded to 8 bits of mantissa, forward and backward. Sums and results
are fp32. Everything else stays fp32: master weights, biases, activations, the sums that cross ranks, FM's
second order, loss, optimisers.

A CPU has two methods for bf16, and the process uses the first that works. A product of known numbers decides,
not a list of CPUs:

    onednn     oneDNN rounds fp32 factors inside its kernels. It does so with AMX only: elsewhere it accepts
        the
               setting and computes in fp32.
    operands   layers round and multiply by themselves (`models.products`), on CPUs with AVX512-BF16.

Speed decides nothing: times differ from run to run, and the bits of a model must not. CPUs with
neither method compute in fp32; `arithmetic_name` tells. GPUs use TF32, whose mantissa has 11 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from livectr.kernels.network import packed
from livectr.models.library import Library, library

Precision = Literal["fp32", "bf16"]
ProductMethod = Literal["fp32", "onednn", "operands"]

_NAMES: dict[ProductMethod, str] = {"fp32": "fp32", "onednn": "bf16 (oneDNN)", "operands": "bf16 operands"}
_MKLDNN, _CUDA = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # type: ignore[attr-defined]

_operands = False


@contextmanager
def precision(
    name: Precision, *, method: ProductMethod | None = None, products: Library = "torch"
) -> Iterator[None]:
    """Context in which products have this precision; the earlier precision holds again after it.

    A backward pass uses the precision at the time of its call, so call it inside too. The setting belongs to
    the process, not to the thread; `products` alone belongs to the thread.

    Args:
        name: "fp32" or "bf16".
        method: method of bf16 on the CPU; None: the measured one.
        products: library of products that stay fp32.

    Raises:
        ValueError: another name.
    """
    if name not in get_args(Precision):
        raise ValueError(f"precision is {name!r}, but must be one of {', '.join(get_args(Precision))}")
    if name == "fp32":
        method = "fp32"
    method = method or measured_method()
    # oneDNN rounds the products that torch gives it: none may be another library's.
    products = products if method == "fp32" else "torch"
    with _set(method, "ieee" if name == "fp32" else "tf32"), library(products):
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
    """True if layers on the CPU round their factors to bf16 by themselves."""
    return _operands


@functools.cache
def measured_method() -> ProductMethod:
    """Method for bf16 on this CPU, measured once; compiles a kernel where oneDNN has no effect."""
    # 1 + 2⁻⁹ rounds to 1 in bf16 (8 bits of mantissa), and only fp32 sums 257 times 1 exactly.
    a, b = torch.full((256, 257), 1 + 2.0**-9), torch.ones(257, 128)
    with _set("onednn", _CUDA.fp32_precision):
        if bool(((a @ b) == 257).all()):
            return "onednn"
    out = packed.product(a.numpy(), b.numpy(), torch.empty(256, 128).numpy(), "bf16")
    return "operands" if packed.native("bf16") and bool((out == 257).all()) else "fp32"


def arithmetic_name(name: Precision, device: torch.device) -> str:
    """Name of a precision's arithmetic on a device: "fp32", "bf16 (oneDNN)", "bf16 operands" or "tf32"."""
    if name == "fp32":
        return "fp32"
    return "tf32" if device.type == "cuda" else _NAMES[measured_method()]
