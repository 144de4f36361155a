"""DeepFM (Guo et al., IJCAI 2017) in DES form (DES §4.2, §4.3 and Table 1).

    logit = b + Σ w + ½ (‖Σ_f v_f‖² − Σ_f ‖v_f‖²) + MLP([v_1 … v_F, s(x)])

FM and MLP share the vectors v_f. Sub-operators: FM's (see `models.fm`) and the first layer's block product
Σ_f v_f W_f (DES eq. 8); each rank holds the blocks of its fields.  ⊕: H₁ + K + 1 float32 per example.

Deviations: multi-valued fields are sum-pooled before FM (see `models.fm`); dense features x enter the MLP,
by s of `models.symlog`, and the first order, not the second.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.fm import fm_partial
from livectr.models.forward import ForwardLayers, LayeredModel
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import MLP, FieldLinear, FirstOrder
from livectr.models.learning import OptimiserSpec, adagrad, ftrl
from livectr.models.segments import SegmentSpec


@dataclass(frozen=True)
class DeepFM(ModelConfig):
    """DeepFM (Guo et al., IJCAI 2017; DES Table 1): FM and MLP on the same vectors.

    logit = b + Σ w + ½ (‖Σ_f v_f‖² − Σ_f ‖v_f‖²) + MLP([v_1 … v_F, s(x)]). Use it as the default: it
    learns pairs and higher orders for the cost of `DNN`. Do not use it for lists of clicked items: `DIN`
    weighs them by the shown ad.

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
        >>> from livectr.models import DeepFM
        >>> config = DeepFM(dim=8, hidden=(32, 16))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows [w | v] of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (41, torch.Size([4]))
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
            SegmentSpec("v", self.dim, self.optimiser, self.init_scale, order=2),
        )

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return DeepFMModel(self, part)


class DeepFMModel(LayeredModel):
    """Network of `DeepFM`; S = H₁ + 1 + K."""

    def __init__(self, config: DeepFM, part: Part) -> None:
        super().__init__()
        self.hidden = config.hidden[0]
        self.partial_size = self.hidden + 1 + config.dim
        self.first = FieldLinear("first", part, dim=config.dim, hidden=self.hidden)
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed)
        self.wide = FirstOrder(part)
        self.local_axes = self.first.local_axes | self.wide.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1 + K] → [Σ v W, Σ s w − ½ Σ ‖v‖², Σ v] f32[B, H₁ + 1 + K]."""
        return fm_partial(values, dense, self.wide, columns, self.first, online=self.online)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, H₁ + 1 + K] → logits f32[B]."""
        return self.mlp.with_pairs(aggregated) + self.bias

    def forward_layers(self) -> ForwardLayers | None:
        """See `LayeredModel.forward_layers`."""
        return ForwardLayers(self.first, self.mlp, self.wide, pairs=True, dim=self.first.weight.shape[1])
