"""Layers that models share: the first layer split by fields, the MLP behind it, first-order weights."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.base import Columns, Part


def generator(seed: int, name: str, part: str = "") -> torch.Generator:
    """A random generator that depends on nothing but its arguments, whatever process asks."""
    digest = hashlib.sha256(f"{seed}\x00{name}\x00{part}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def glorot(shape: Sequence[int], fan_in: int, fan_out: int, source: torch.Generator) -> Tensor:
    """Uniform in ±√(6 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    bound = math.sqrt(6.0 / (fan_in + fan_out))
    return torch.empty(*shape).uniform_(-bound, bound, generator=source)


class FieldLinear(nn.Module):
    """A DNN's first layer, split by fields (DES eq. 8): Σ_f v_f W_f over own fields, plus the dense block.

    The bias belongs to the replicated part, because it must be added once, after ⊕.

    Attributes:
        weight: f32[F_local, K, H]
        dense: f32[Dd, H] where the dense features live, else None
    """

    weight: nn.Parameter
    dense: nn.Parameter | None

    def __init__(self, name: str, part: Part, *, dim: int, hidden: int) -> None:
        super().__init__()
        fan_in = len(part.fields) * dim + len(part.dense_names)

        def stack(names: Sequence[str], kind: str, *shape: int) -> nn.Parameter:
            stacked = torch.empty(len(names), *shape)
            for i, one in enumerate(names):
                stacked[i] = glorot(shape, fan_in, hidden, generator(part.seed, name, f"{kind}/{one}"))
            return nn.Parameter(stacked)

        self.weight = stack(part.local, "field", dim, hidden)
        self.dense = stack(part.local_dense, "dense", hidden) if part.local_dense else None

    def forward(self, vectors: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """vectors f32[B, F_local, K], dense f32[B, Dd], or only `columns` of them → f32[B, H]."""
        weight = self.weight if columns is None else some(self.weight, columns.fields)
        out = vectors.flatten(1) @ weight.flatten(0, 1)
        if self.dense is None or dense is None:
            return out
        return torch.addmm(out, dense, self.dense if columns is None else some(self.dense, columns.dense))


class MLP(nn.Module):
    """What follows the first layer: relu(x + b₁) W₂ + b₂ …, the last layer without activation."""

    def __init__(self, name: str, sizes: Sequence[int], seed: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        self.first_bias = nn.Parameter(torch.zeros(sizes[0]))
        self.weights = nn.ParameterList(
            glorot((a, b), a, b, generator(seed, f"{name}.{i}")) for i, (a, b) in enumerate(pairs)
        )
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs)

    def forward(self, first: Tensor) -> Tensor:
        """The first layer's aggregated product, without its bias: f32[B, sizes[0]] → f32[B, sizes[-1]]."""
        x = first + self.first_bias
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = torch.addmm(bias, torch.relu(x), weight)
        return x


def some(tensor: Tensor, index: Sequence[int]) -> Tensor:
    """Entries of axis 0, ascending; a view where they follow each other."""
    first = index[0] if index else 0
    if tuple(index) == tuple(range(first, first + len(index))):
        return tensor[first : first + len(index)]
    return tensor.index_select(0, torch.tensor(index, device=tensor.device))


def first_order_sum(dense: Tensor, linear: Tensor, columns: Columns | None) -> Tensor:
    """Dense features f32[B, Dd], or only `columns` of them, with first-order weights f32[Dd] → f32[B, 1]."""
    return (dense @ (linear if columns is None else some(linear, columns.dense))).unsqueeze(1)


def first_order(part: Part) -> nn.Parameter | None:
    """First-order weights f32[Dd] of the dense features, zero at the start; None where they do not live."""
    return nn.Parameter(torch.zeros(len(part.local_dense))) if part.local_dense else None
