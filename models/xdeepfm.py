"""xDeepFM (Lian et al., KDD 2018; DES Table 3): vector interactions whose degree grows with each layer.

    x⁰ = [v_1 … v_F] (m rows)       x^k_h = Σ_i Σ_j W^k_hij (x^{k−1}_i ∘ x⁰_j)       CIN (paper eq. 6)
    p^k_h = Σ_K x^k_h               sum pooling over the vector
    logit = b + Σ w + uᵀ [p¹ … p^L] + MLP([v_1 … v_F, s(x)])

Sub-operators: Σ w as in LR and the first layer's block product Σ_f v_f W_f (DES eq. 8).  ⊕: H₁ + 1 float32
per example. CIN multiplies vectors of different fields repeatedly, which no sum over fields replaces: it
needs every field's vector (F·K float32 per example, gathered). Its weights are shared.

Deviations: CIN's activation is the identity, the best in the paper's §4.4; every map of a layer goes to the
output and to the next layer; multi-valued fields are sum-pooled; dense features x enter the first order and
the MLP only, there by s of `models.symlog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from livectr.models.base import CTRModel, FeatureAxes, ModelConfig
from livectr.models.inputs import Columns, Gathered, Gathers, Part, require_gathered
from livectr.models.layers import MLP, FieldLinear, FirstOrder, matrix
from livectr.models.learning import OptimiserSpec, adagrad, ftrl
from livectr.models.products import product
from livectr.models.segments import SegmentSpec


@dataclass(frozen=True)
class XDeepFM(ModelConfig):
    """xDeepFM (Lian et al., KDD 2018, §3): compressed interaction network (CIN) beside an MLP.

    x^k_h = Σ_ij W^k_hij (x^{k−1}_i ∘ x⁰_j); logit = b + Σ w + uᵀ [sums of x¹ … x^L] + MLP. Use it for high
    orders of few fields. Do not use it with many fields or slow links: every vector is gathered, and a layer
    multiplies H_{k−1}·F pairs.

    Args:
        dim: K, float32 values of a vector v.
        cin: maps H_k of each CIN layer; at least one layer.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        optimiser: table optimiser of the vectors v.
        first_order: table optimiser of the weights w.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import Gathered, XDeepFM
        >>> config = XDeepFM(dim=8, cin=(6, 6), hidden=(32, 16))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows [w | v] of 4 examples
        >>> gathered = Gathered(pooled=values, sequences={})
        >>> model.partial_size, model(values, torch.zeros(4, 1), gathered).shape
        (33, torch.Size([4]))
    """

    dim: int = 16
    cin: tuple[int, ...] = (32, 32)
    hidden: tuple[int, ...] = (256, 128)
    optimiser: OptimiserSpec = adagrad()
    first_order: OptimiserSpec = ftrl()
    init_scale: float = 0.02
    dense_lr: float = 2e-3

    def gathers(self, fields: Sequence[str]) -> Gathers:
        """Gathers every field's vector."""
        return Gathers(pooled=tuple(fields))

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: w f32[1], v f32[K]."""
        return (
            SegmentSpec("w", 1, self.first_order, order=1),
            SegmentSpec("v", self.dim, self.optimiser, self.init_scale),
        )

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return XDeepFMModel(self, part)


class XDeepFMModel(CTRModel):
    """Network of `XDeepFM`; S = 1 + H₁.

    Attributes:
        cin: W^k, f32[H_{k−1}·m, H_k] of each layer.
        output: u, f32[Σ H_k, 1].
    """

    def __init__(self, config: XDeepFM, part: Part) -> None:
        super().__init__()
        self.partial_size = 1 + config.hidden[0]
        self.first = FieldLinear("first", part, dim=config.dim, hidden=config.hidden[0])
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed)
        self.wide = FirstOrder(part)
        fields = len(part.fields)
        inputs = (fields, *config.cin[:-1])
        self.cin = nn.ParameterList(
            matrix(part.seed, f"cin.{k}", maps * fields, out)
            for k, (maps, out) in enumerate(zip(inputs, config.cin, strict=True))
        )
        self.output = matrix(part.seed, "output", sum(config.cin), 1)
        self.local_axes = self.first.local_axes | self.wide.local_axes
        self.feature_axes = {
            f"cin.{k}": FeatureAxes((maps if k else "fields", "fields", out))
            for k, (maps, out) in enumerate(zip(inputs, config.cin, strict=True))
        }

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1 + K] → [Σ w, Σ v W] f32[B, 1 + H₁]."""
        wide = self.wide(values, dense, columns)
        return torch.cat([wide, self.first(values[..., 1:], dense, columns)], dim=1)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, 1 + H₁] → logits f32[B]."""
        x_0 = require_gathered(gathered).pooled[..., 1:].transpose(1, 2).contiguous()  # f32[B, K, m]
        x, sums = x_0, []
        for weight in self.cin:  # a product of B·K rows instead of B small products
            products = (x.unsqueeze(3) * x_0.unsqueeze(2)).flatten(2)
            x = product(products, weight)
            sums.append(x.sum(dim=1))
        deep: Tensor = (self.mlp(aggregated[:, 1:]) + torch.cat(sums, dim=1) @ self.output).squeeze(1)
        return aggregated[:, 0] + deep + self.bias
