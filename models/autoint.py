"""AutoInt (Song et al., CIKM 2019; DES Table 3): multi-head self-attention between features.

Tokens e_1 … e_M: the vector v_f of every field, and s(x_d) v_d of every dense feature. Each layer, with heads
h:

    α_mk = softmax_k ⟨e_m Q_h, e_k K_h⟩
    e'_m = relu([Σ_k α_mk e_k V_h of all heads h] + e_m R)

    logit = b + uᵀ [e_1 … e_M]                    after the last layer

and with `deep`, AutoInt+: + MLP([v_1 … v_F, s(x)]).

Sub-operators: only AutoInt+ has any, the first layer's block product Σ_f v_f W_f (DES eq. 8).  ⊕: H₁ float32
per example, or none. Attention needs every field's vector (F·K float32 per example, gathered) and the dense
features; its weights are shared.

Deviations: multi-valued fields are sum-pooled where the paper takes the mean; dense features x enter by s of
`models.symlog`; no dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from livectr.models.base import CTRModel, FeatureAxes, ModelConfig
from livectr.models.inputs import Columns, Gathered, Gathers, Part, require_gathered
from livectr.models.layers import DENSE_SCALE, MLP, FieldLinear, generator, matrix
from livectr.models.learning import OptimiserSpec, adagrad
from livectr.models.products import product
from livectr.models.segments import SegmentSpec
from livectr.models.symlog import symlog


@dataclass(frozen=True)
class AutoInt(ModelConfig):
    """AutoInt (Song et al., CIKM 2019, §4): self-attention over the vectors of all fields and dense features.

    logit = b + uᵀ [e_1 … e_M] after the last layer, with `deep` + MLP([v_1 … v_F, s(x)]) (AutoInt+). Use
    it where the model should learn which features meet. Do not use it with many fields or slow links: every
    vector is gathered, and attention costs M² per layer.

    Args:
        dim: K, float32 values of a vector v.
        layers: L, attention layers.
        heads: heads of a layer.
        out: float32 values of a head's output.
        deep: units of the hidden layers of AutoInt+'s MLP; () for AutoInt.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import AutoInt, Gathered
        >>> config = AutoInt(dim=8, layers=2, heads=2, out=4)
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values, dense = torch.zeros(4, len(fields), config.width), torch.zeros(4, 1)  # 4 examples
        >>> gathered = Gathered(pooled=values, sequences={}, dense=dense)
        >>> model.partial_size, model(values, dense, gathered).shape
        (0, torch.Size([4]))
    """

    dim: int = 16
    layers: int = 3
    heads: int = 2
    out: int = 16
    deep: tuple[int, ...] = ()
    optimiser: OptimiserSpec = adagrad()
    init_scale: float = 0.02
    dense_lr: float = 2e-3

    def gathers(self, fields: Sequence[str]) -> Gathers:
        """Gathers every field's vector and the dense features."""
        return Gathers(pooled=tuple(fields), dense=True)

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: v f32[K]."""
        return (SegmentSpec("v", self.dim, self.optimiser, self.init_scale),)

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return AutoIntModel(self, part)


class AutoIntModel(CTRModel):
    """Network of `AutoInt`; S = H₁, or 0 without `deep`.

    Attributes:
        tokens: v_d of the dense features, f32[Dd, K].
        output: u, f32[M·heads·out, 1].
    """

    def __init__(self, config: AutoInt, part: Part) -> None:
        super().__init__()
        numbers, width = len(part.dense_names), config.heads * config.out
        self.tokens = nn.Parameter(torch.empty(numbers, config.dim))
        with torch.no_grad():
            for i, name in enumerate(part.dense_names):
                self.tokens[i].normal_(
                    0, DENSE_SCALE * config.dim**-0.5, generator=generator(part.seed, "tokens", name)
                )
        self.layers = nn.ModuleList(
            SelfAttention(f"layers.{i}", width if i else config.dim, config.heads, config.out, part.seed)
            for i in range(config.layers)
        )
        self.output = matrix(part.seed, "output", (len(part.fields) + numbers) * width, 1)
        self.feature_axes = {
            "tokens": FeatureAxes(("dense", config.dim), from_zero=False),
            "output": FeatureAxes(("features", width)),
        }
        self.first: FieldLinear | None = None
        self.mlp: MLP | None = None
        self.partial_size = 0
        if config.deep:
            self.partial_size = config.deep[0]
            self.first = FieldLinear("first", part, dim=config.dim, hidden=config.deep[0])
            self.mlp = MLP("mlp", (*config.deep, 1), part.seed)
            self.local_axes = self.first.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, K] → Σ v W f32[B, H₁], or f32[B, 0]."""
        if self.first is None:
            return values.flatten(1)[:, :0]
        out: Tensor = self.first(values, dense, columns)
        return out

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, S] → logits f32[B]."""
        seen = require_gathered(gathered)
        x = seen.pooled
        if len(self.tokens):
            assert seen.dense is not None, "its configuration asks for the dense features"
            x = torch.cat([x, symlog(seen.dense).unsqueeze(2) * self.tokens], dim=1)
        for layer in self.layers:
            x = layer(x)
        logits = (x.flatten(1) @ self.output).squeeze(1) + self.bias
        if self.mlp is None:
            return logits
        deep: Tensor = self.mlp(aggregated).squeeze(1)
        return logits + deep


class SelfAttention(nn.Module):
    """Self-attention layer f32[B, M, W] → f32[B, M, heads·out]. Q, K, V and R are f32[W, heads·out]."""

    def __init__(self, name: str, width: int, heads: int, out: int, seed: int) -> None:
        super().__init__()
        self._split = (heads, out)
        self.query, self.key, self.value, self.residual = (
            matrix(seed, f"{name}.{part}", width, heads * out)
            for part in ("query", "key", "value", "residual")
        )

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        query, key, value = (self._heads(product(x, w)) for w in (self.query, self.key, self.value))
        attention = torch.softmax(query @ key.transpose(2, 3), dim=3)
        seen = (attention @ value).transpose(1, 2).flatten(2)
        return torch.relu(seen + product(x, self.residual))

    def _heads(self, x: Tensor) -> Tensor:
        """Splits f32[B, M, heads·out] into f32[B, heads, M, out]."""
        return x.reshape(*x.shape[:2], *self._split).transpose(1, 2)
