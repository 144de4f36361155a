"""Product-based neural networks, inner and outer product (Qu et al., ICDM 2016; DES Table 3, "same as FM").

    logit = b + MLP'(relu(l_z + l_p + b₁))          l_z = [v_1 … v_F, s(x)] W_z

    inner (paper III.B)   l_pⁿ = Σ_ij θ_iⁿ θ_jⁿ ⟨v_i, v_j⟩ = ‖Σ_i θ_iⁿ v_i‖²        weights of pairs θⁿ θⁿᵀ
    outer (paper III.C)   l_pⁿ = W_pⁿ ⊙ (Σ_i v_i) (Σ_j v_j)ᵀ = sᵀ W_pⁿ s,  s = Σ_i v_i   superposed products

Sub-operators: the first layer's block product Σ_f v_f W_f (DES eq. 8), and inner: δⁿ = Σ_i θ_iⁿ v_i for each
of the H₁ units, with θ_i beside the field; outer: s.  ⊕: H₁ + H₁·K (inner), H₁ + K (outer) float32 per
example.

Deviations: dense features x enter l_z only, by s of `models.symlog` (the paper has none); no dropout;
multi-valued fields are sum-pooled. The paper's W_pⁿ of the outer product is symmetric; here it is any matrix,
and sᵀ W s depends on its symmetric part only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import MLP, FieldLinear, local_stack, matrix, select
from livectr.models.learning import OptimiserSpec, adagrad
from livectr.models.products import product
from livectr.models.segments import SegmentSpec

PRODUCTS = ("inner", "outer")
"""Values of `PNN.product`."""


@dataclass(frozen=True)
class PNN(ModelConfig):
    """Product-based neural network (Qu et al., ICDM 2016, §III): products of vectors before the MLP.

    logit = b + MLP(relu([v_1 … v_F, s(x)] W_z + l_p + b₁)); l_p is ‖Σ_i θ_i v_i‖² ("inner") or sᵀ W s with
    s = Σ_i v_i ("outer"). Use it where pairs should pass through the MLP. Do not use "inner" with a wide
    first layer over slow links: each example sends H₁·K numbers.

    Args:
        product: "inner" or "outer".
        dim: K, float32 values of a vector v.
        hidden: units of the hidden layers; the product layer has H₁ = hidden[0].
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import PNN
        >>> config = PNN(product="outer", dim=8, hidden=(32, 16))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows v of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (40, torch.Size([4]))
    """

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
    """Network of `PNN`; S = H₁ + H₁·K (inner) or H₁ + K (outer)."""

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
    """Inner products, l_pⁿ = ‖Σ_i θ_iⁿ v_i‖²; theta f32[F_local, H₁]."""

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
    """Outer products, l_pⁿ = sᵀ W_pⁿ s; weight f32[K, K·H₁], shared."""

    def __init__(self, part: Part, dim: int, hidden: int) -> None:
        super().__init__()
        self.size = dim
        self._shape = (dim, hidden)
        self.weight = matrix(part.seed, "product.weight", dim, dim * hidden)

    def partial(self, values: Tensor, fields: Sequence[int] | None) -> Tensor:
        """Values f32[B, F_local, K] → s f32[B, K]."""
        return values.sum(dim=1)

    def units(self, total: Tensor) -> Tensor:
        """Units l_p f32[B, H₁] of s f32[B, K]."""
        right = product(total, self.weight).reshape(-1, *self._shape)
        return (total.unsqueeze(2) * right).sum(dim=1)
