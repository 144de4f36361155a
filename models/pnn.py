"""Product-based neural networks, inner and outer product (Qu et al., ICDM 2016; DES Table 3, "same as FM").

    logit = b + MLP'(relu(l_z + l_p + b₁))          l_z = [v_1 … v_F, x_dense] W_z

    inner (paper III.B)   l_pⁿ = Σ_ij θ_iⁿ θ_jⁿ ⟨v_i, v_j⟩ = ‖Σ_i θ_iⁿ v_i‖²        weights of pairs θⁿ θⁿᵀ
    outer (paper III.C)   l_pⁿ = W_pⁿ ⊙ (Σ_i v_i) (Σ_j v_j)ᵀ = sᵀ W_pⁿ s,  s = Σ_i v_i   superposed products

Sub-operators: the first layer's block product Σ_f v_f W_f (DES eq. 8), and inner: δⁿ = Σ_i θ_iⁿ v_i for each
of the H₁ units, with θ_i beside the field; outer: s.  ⊕: H₁ + H₁·K (inner), H₁ + K (outer) float32 a sample.

Deviations: dense features enter l_z only (the paper has none); no dropout; multi-valued fields are
sum-pooled. The paper's W_pⁿ of the outer product is symmetric; here it is any matrix, of which sᵀ W s
sees the symmetric part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from livectr.models.base import (
    Columns,
    CTRModel,
    Gathered,
    ModelConfig,
    OptimiserSpec,
    Part,
    SegmentSpec,
    adagrad,
)
from livectr.models.layers import MLP, FieldLinear, local_stack, matrix, select
from livectr.models.products import product

PRODUCTS = ("inner", "outer")


@dataclass(frozen=True)
class PNN(ModelConfig):
    """A product layer of hidden[0] units on vectors of `dim` float32; the other `hidden` widths follow it."""

    product: str = "inner"
    dim: int = 8
    hidden: tuple[int, ...] = (64, 64)
    optimiser: OptimiserSpec = adagrad()
    init_scale: float = 0.05
    dense_lr: float = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.product not in PRODUCTS:
            raise ValueError(f"PNN: product is {self.product!r}, but must be one of {', '.join(PRODUCTS)}")

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: v f32[K]."""
        return (SegmentSpec("v", self.dim, self.optimiser, self.init_scale),)

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return PNNModel(self, part)


class PNNModel(CTRModel):
    """S = H₁ + H₁·K (inner) or H₁ + K (outer)."""

    def __init__(self, config: PNN, part: Part) -> None:
        super().__init__()
        self.dim, self.hidden = config.dim, config.hidden[0]
        self.first = FieldLinear("first", part, dim=config.dim, hidden=self.hidden)
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed)
        self.local_axes = dict(self.first.local_axes)
        self.product: Inner | Outer
        if config.product == "inner":
            self.product = Inner(part, config.dim, self.hidden)
            self.local_axes["product.theta"] = part.local
        else:
            self.product = Outer(part, config.dim, self.hidden)
        self.partial_size = self.hidden + self.product.size

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, K] → [Σ v W, δ or s] f32[B, S]."""
        fields = None if columns is None else columns.fields
        return torch.cat([self.first(values, dense, columns), self.product.partial(values, fields)], dim=1)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, S] → logits f32[B]."""
        products = self.product.units(aggregated[:, self.hidden :])
        deep: Tensor = self.mlp(aggregated[:, : self.hidden] + products).squeeze(1)
        return deep + self.bias


class Inner(nn.Module):
    """l_pⁿ = ‖Σ_i θ_iⁿ v_i‖²; theta f32[F_local, H₁]."""

    def __init__(self, part: Part, dim: int, hidden: int) -> None:
        super().__init__()
        self.size = hidden * dim
        self._shape = (hidden, dim)
        fields = len(part.fields)
        self.theta = local_stack(
            part.seed, "product.theta", part.local, hidden, fan_in=fields, fan_out=hidden
        )

    def partial(self, values: Tensor, fields: Sequence[int] | None) -> Tensor:
        """Values f32[B, F_local, K] → δ f32[B, H₁·K]."""
        theta = self.theta if fields is None else select(self.theta, fields)
        return (theta.T @ values).flatten(1)

    def units(self, delta: Tensor) -> Tensor:
        """δ f32[B, H₁·K] → l_p f32[B, H₁]."""
        return delta.reshape(-1, *self._shape).square().sum(dim=2)


class Outer(nn.Module):
    """l_pⁿ = sᵀ W_pⁿ s; weight f32[K, K·H₁], shared."""

    def __init__(self, part: Part, dim: int, hidden: int) -> None:
        super().__init__()
        self.size = dim
        self._shape = (dim, hidden)
        self.weight = matrix(part.seed, "product.weight", dim, dim * hidden)

    def partial(self, values: Tensor, fields: Sequence[int] | None) -> Tensor:
        """Values f32[B, F_local, K] → s f32[B, K]."""
        return values.sum(dim=1)

    def units(self, total: Tensor) -> Tensor:
        """s f32[B, K] → l_p f32[B, H₁]."""
        right = product(total, self.weight).reshape(-1, *self._shape)
        return (total.unsqueeze(2) * right).sum(dim=1)
