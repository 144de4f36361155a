"""Logistic regression, the first-order model (DES §4.1; Richardson et al., WWW 2007).

    logit = Σ_i w_i + Σ_d x_d u_d + b        i over the example's sparse keys, d over its dense features

Sub-operator (DES eq. 2): M₁ = Σ over the rank's fields.  ⊕: 1 float32 per example.

Deviation, of every model with a first order: the weights w of a field are multiplied by a learned scale
(`models.layers.FirstOrder`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.forward import ForwardLayers, LayeredModel
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import FirstOrder
from livectr.models.learning import OptimiserSpec, ftrl
from livectr.models.segments import SegmentSpec


@dataclass(frozen=True)
class LR(ModelConfig):
    """Logistic regression (Richardson et al., WWW 2007; DES §4.1): logit = b + Σ w + Σ x u.

    Use it as the baseline that every deeper model has to beat, or for billions of keys: FTRL with `l1` keeps
    weights at exactly 0. Do not use it where pairs of features matter and no field holds their cross.

    Args:
        optimiser: table optimiser of the weights w, one per key.
        dense_lr: of no effect, as no parameter is left to Adam; pipelines and checkpoints know it.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import LR, ftrl
        >>> config = LR(optimiser=ftrl(alpha=0.1, l1=1.0))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows w of 4 examples
        >>> model(values, torch.zeros(4, 1)).shape
        torch.Size([4])
    """

    optimiser: OptimiserSpec = ftrl()
    dense_lr: float = 1e-2

    @property
    def map_of_dense(self) -> str:
        """None: dense features enter the first order alone."""
        return ""

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: w f32[1]."""
        return (SegmentSpec("w", 1, self.optimiser, order=1),)

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return LRModel(part)


class LRModel(LayeredModel):
    """Network of `LR`; S = 1."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.partial_size = 1
        self.wide = FirstOrder(part)
        self.local_axes = self.wide.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1] → Σ s w + Σ x u f32[B, 1]."""
        out: Tensor = self.wide(values, dense, columns)
        return out

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, 1] → logits f32[B]."""
        return aggregated[:, 0] + self.bias

    def forward_layers(self) -> ForwardLayers | None:
        """See `LayeredModel.forward_layers`."""
        return ForwardLayers(wide=self.wide)
