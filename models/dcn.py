"""Deep & Cross network (Wang et al., ADKDD 2017; DES Table 3 and Figure 6), with a single ⊕.

    x_0 = [v_1 … v_F, s(x)]          x_{l+1} = x_0 (x_lᵀ w_l) + b_l + x_l          l = 0 … L − 1
    logit = b + x_Lᵀ w_L + MLP(x_0)     (w_L: the cross part's block of the output layer)

DES §4 aggregates the scalar x_lᵀ w_l in each layer: L all-reduces in sequence. A single ⊕ suffices. By
induction x_l = α_l x_0 + β_l, with a number α_l per example and a vector β_l of the parameters alone:

    β_0 = 0,  β_{l+1} = β_l + b_l          α_0 = 1,  α_{l+1} = α_l + α_l (x_0ᵀ w_l) + β_lᵀ w_l

A layer therefore needs c_l = x_0ᵀ w_l of the example and d_l = β_lᵀ w_l of the parameters. Both are sums over
fields; α_0 … α_L and the logit α_L c_L + d_L follow from them.

Sub-operators: c_0 … c_L, d_1 … d_L (d_0 = 0) and the first layer's block product Σ_f v_f W_f (DES eq. 8); w_l
and b_l live beside their field.  ⊕: H₁ + 2 L + 1 float32 per example (d is equal in all examples).

Deviations: one ⊕ for the paper's L, the same mathematics; no batch normalisation; multi-valued fields are
sum-pooled; dense features x enter by s of `models.symlog`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import DENSE_SCALE, MLP, FieldLinear, local_stack, select
from livectr.models.learning import OptimiserSpec, adagrad
from livectr.models.products import affine, product
from livectr.models.segments import SegmentSpec
from livectr.models.symlog import symlog


@dataclass(frozen=True)
class DCN(ModelConfig):
    """Deep & Cross network (Wang et al., ADKDD 2017; DES Table 3).

    x_{l+1} = x_0 (x_lᵀ w_l) + b_l + x_l beside an MLP, both on x_0 = [v_1 … v_F, s(x)]. Use it for crosses
    of bounded degree at the cost of a few hundred parameters. Do not use it where pairs suffice: take
    `DeepFM`.

    Args:
        dim: K, float32 values of a vector v.
        layers: L, cross layers; the crosses have a degree of up to L + 1.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import DCN
        >>> config = DCN(dim=8, layers=2, hidden=(32, 16))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows v of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (37, torch.Size([4]))
    """

    dim: int = 16
    layers: int = 3
    hidden: tuple[int, ...] = (256, 128)
    optimiser: OptimiserSpec = adagrad()
    init_scale: float = 0.02
    dense_lr: float = 2e-3

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: v f32[K]."""
        return (SegmentSpec("v", self.dim, self.optimiser, self.init_scale),)

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return DCNModel(self, part)


class DCNModel(CTRModel):
    """Network of `DCN`; S = H₁ + (L + 1) + L."""

    def __init__(self, config: DCN, part: Part) -> None:
        super().__init__()
        self.hidden, self.layers = config.hidden[0], config.layers
        self.partial_size = self.hidden + 2 * config.layers + 1
        self.first = FieldLinear("first", part, dim=config.dim, hidden=self.hidden)
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed)
        self.cross = Cross(part, config.dim, config.layers)
        self.local_axes = self.first.local_axes | self.cross.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, K] → [Σ v W, c, d] f32[B, S]."""
        c, d = self.cross(values, dense, columns)
        return torch.cat([self.first(values, dense, columns), c, d.expand(len(c), -1)], dim=1)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, S] → logits f32[B]."""
        last = self.layers
        deep: Tensor = self.mlp(aggregated[:, : self.hidden]).squeeze(1)
        c = aggregated[:, self.hidden :]
        d = c[:, last:]  # d[:, l] is d_l; its column 0 is c_L and is not read
        alpha = 1 + c[:, 0]
        for layer in range(1, last):
            alpha = alpha + alpha * c[:, layer] + d[:, layer]
        return deep + alpha * c[:, last] + d[:, last] + self.bias


class Cross(nn.Module):
    """Cross layers' blocks of the rank's fields and dense features.

    Attributes:
        weight: f32[F_local, K, L + 1], w_0 … w_L.
        bias: f32[F_local, K, L], b_0 … b_{L−1}.
        dense_weight, dense_bias: f32[Dd, 1, ·] on the rank of the dense features, else None.
    """

    dense_weight: nn.Parameter | None
    dense_bias: nn.Parameter | None

    def __init__(self, part: Part, dim: int, layers: int) -> None:
        super().__init__()
        width = len(part.fields) * dim + len(part.dense_names)

        def weight(owners: tuple[str, ...], kind: str, rows: int) -> nn.Parameter:
            names = [f"{kind}/{owner}" for owner in owners]
            return local_stack(part.seed, "cross", names, rows, layers + 1, fan_in=width, fan_out=1)

        self.weight = weight(part.local, "field", dim)
        self.bias = nn.Parameter(torch.zeros(len(part.local), dim, layers))
        numbers = part.local_dense
        self.dense_weight = None
        if numbers:
            self.dense_weight = nn.Parameter(DENSE_SCALE * weight(numbers, "dense", 1).detach())
        self.dense_bias = nn.Parameter(torch.zeros(len(numbers), 1, layers)) if numbers else None
        self.local_axes = {"cross.weight": part.local, "cross.bias": part.local}
        self.local_axes |= {"cross.dense_weight": numbers, "cross.dense_bias": numbers}

    def forward(self, values: Tensor, dense: Tensor | None, columns: Columns | None) -> tuple[Tensor, Tensor]:
        """Values f32[B, F_local, K], dense f32[B, Dd] → c f32[B, L + 1], d f32[L]."""
        weight, bias = _select(self.weight, self.bias, None if columns is None else columns.fields)
        c, d = product(values.flatten(1), weight.flatten(0, 1)), _constants(weight, bias)
        if self.dense_weight is None or self.dense_bias is None or dense is None:
            return c, d
        weight, bias = _select(self.dense_weight, self.dense_bias, None if columns is None else columns.dense)
        return affine(c, symlog(dense), weight.flatten(0, 1)), d + _constants(weight, bias)


def _select(weight: Tensor, bias: Tensor, index: tuple[int, ...] | None) -> tuple[Tensor, Tensor]:
    return (weight, bias) if index is None else (select(weight, index), select(bias, index))


def _constants(weight: Tensor, bias: Tensor) -> Tensor:
    """Computes d_1 … d_L f32[L] of blocks f32[n, K, L + 1] and f32[n, K, L]."""
    return (bias.cumsum(dim=2) * weight[..., 1:]).sum(dim=(0, 1))
