"""Embedding & MLP, the plain deep network (DES §4.3 and Table 1; Covington et al., RecSys 2016).

    logit = b + MLP([v_1 … v_F, s(x)])

Sub-operators: the first layer's block product Σ_f v_f W_f (DES eq. 8); each rank holds the blocks of its
fields.  ⊕: H₁ float32 per example.

Deviations: multi-valued fields are sum-pooled; dense features x enter by s of `models.symlog`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from torch import Tensor

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.forward import ForwardLayers, LayeredModel
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import MLP, Activation, FieldLinear
from livectr.models.learning import OptimiserSpec, adagrad
from livectr.models.segments import SegmentSpec
from livectr.models.settings import check_choice


@dataclass(frozen=True)
class DNN(ModelConfig):
    """Embedding & MLP (Covington et al., RecSys 2016; DES §4.3): logit = b + MLP([v_1 … v_F, s(x)]).

    Use it as the plain deep baseline. Do not use it where single keys should be
    remembered as they are: `WideDeep` and `DeepFM` add a weight per key.

    Args:
        dim: K, float32 values of a vector v.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        activation: "relu" or "prelu" (a learned slope per unit).
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import DNN
        >>> config = DNN(dim=8, hidden=(32, 16))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows v of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (32, torch.Size([4]))
    """

    dim: int = 16
    hidden: tuple[int, ...] = (256, 128)
    optimiser: OptimiserSpec = adagrad()
    init_scale: float = 0.02
    dense_lr: float = 2e-3
    activation: Activation = field(default="relu", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "activation", get_args(Activation))

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: v f32[K]."""
        return (SegmentSpec("v", self.dim, self.optimiser, self.init_scale),)

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return DNNModel(self, part)


class DNNModel(LayeredModel):
    """Network of `DNN`; S = H₁."""

    def __init__(self, config: DNN, part: Part) -> None:
        super().__init__()
        self.partial_size = config.hidden[0]
        self.first = FieldLinear("first", part, dim=config.dim, hidden=config.hidden[0])
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed, config.activation)
        self.local_axes = self.first.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, K] → Σ v W f32[B, H₁]."""
        out: Tensor = self.first(values, dense, columns)
        return out

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, H₁] → logits f32[B]."""
        deep: Tensor = self.mlp(aggregated).squeeze(1)
        return deep + self.bias

    def forward_layers(self) -> ForwardLayers | None:
        """See `LayeredModel.forward_layers`."""
        return ForwardLayers(self.first, self.mlp, dim=self.first.weight.shape[1])
