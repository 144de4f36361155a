"""Wide & Deep (Cheng et al., DLRS 2016) in DES form (DES §4.1, §4.3 and Table 1).

    logit = b + Σ w + MLP([v_1 … v_F, s(x)])

Sub-operators: LR's sum Σ w (DES eq. 3) and the first layer's block product Σ_f v_f W_f (DES eq. 8).
⊕: H₁ + 1 float32 per example.

Deviations: every field is in both parts, and a cross product is a field like any other (`cross` of the
feature language), so it has a vector too. Dense features x enter the MLP by s of `models.symlog`. The wide
part's L1 is FTRL's as in the paper; the network is learned by Adam instead of AdaGrad.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.forward import ForwardLayers, LayeredModel
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import MLP, FieldLinear, FirstOrder
from livectr.models.learning import OptimiserSpec, adagrad, ftrl
from livectr.models.segments import SegmentSpec


@dataclass(frozen=True)
class WideDeep(ModelConfig):
    """Wide & Deep (Cheng et al., DLRS 2016): logit = b + Σ w + MLP([v_1 … v_F, s(x)]).

    Use it where known crosses should be remembered exactly: make each cross a field of the pipeline. Do not
    use it to find crosses: `DeepFM` learns all pairs at nearly the same cost.

    Args:
        dim: K, float32 values of a vector v.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        optimiser: table optimiser of the vectors v.
        first_order: table optimiser of the weights w.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import WideDeep
        >>> config = WideDeep(dim=8, hidden=(32, 16))
        >>> fields = ("user", "ad", "user_x_ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows [w | v] of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (33, torch.Size([4]))
    """

    dim: int = 16
    hidden: tuple[int, ...] = (256, 128)
    optimiser: OptimiserSpec = adagrad()
    first_order: OptimiserSpec = ftrl()
    init_scale: float = 0.02
    dense_lr: float = 2e-3

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: w f32[1], v f32[K]."""
        return (
            SegmentSpec("w", 1, self.first_order, order=1),
            SegmentSpec("v", self.dim, self.optimiser, self.init_scale),
        )

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return WideDeepModel(self, part)


class WideDeepModel(LayeredModel):
    """Network of `WideDeep`; S = 1 + H₁."""

    def __init__(self, config: WideDeep, part: Part) -> None:
        super().__init__()
        self.partial_size = 1 + config.hidden[0]
        self.first = FieldLinear("first", part, dim=config.dim, hidden=config.hidden[0])
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed)
        self.wide = FirstOrder(part)
        self.local_axes = self.first.local_axes | self.wide.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1 + K] → [Σ w, Σ v W] f32[B, 1 + H₁]."""
        wide = self.wide(values, dense, columns)
        return torch.cat([wide, self.first(values[..., 1:], dense, columns)], dim=1)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, 1 + H₁] → logits f32[B]."""
        deep: Tensor = self.mlp(aggregated[:, 1:]).squeeze(1)
        return aggregated[:, 0] + deep + self.bias

    def forward_layers(self) -> ForwardLayers | None:
        """See `LayeredModel.forward_layers`."""
        return ForwardLayers(self.first, self.mlp, self.wide, dim=self.first.weight.shape[1])
