"""Activation unit with random weights, by the compiled kernel and by torch's operations."""

from __future__ import annotations

import torch
from torch import Tensor

from livectr.models.attention import ActivationUnit, composed, fused
from livectr.models.inputs import Ragged


def unit(dim: int, widths: tuple[int, ...], dtype: torch.dtype) -> ActivationUnit:
    built = ActivationUnit("unit", dim, widths, 3).to(dtype)
    source = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=source, dtype=dtype))
    return built


def inputs(lengths: list[int], dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(len(lengths))
    values = torch.randn(sum(lengths), dim, generator=source, dtype=dtype)
    query = torch.randn(len(lengths), dim, generator=source, dtype=dtype)
    return values, torch.tensor([0, *lengths]).cumsum(0), query


def both(built: ActivationUnit, lengths: list[int], dim: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Result and all gradients, by the kernel and by torch."""
    found = []
    for attended in (fused, composed):
        values, offsets, query = inputs(lengths, dim, dtype)
        leaves = [values.requires_grad_(), query.requires_grad_(), *built.parameters()]
        parts = list(built.weights), list(built.biases), list(built.slopes)
        out = attended(Ragged(values, offsets), query, *parts)
        weights = torch.linspace(-1, 2, out.numel(), dtype=dtype).reshape(out.shape)
        grads = torch.autograd.grad((out * weights).sum(), leaves)
        found.append([out.detach(), *grads])
    return found
