"""Factorization machine of order 2 (DES §4.2; Rendle, ICDM 2010).

    logit = b + Σ w + ½ (‖Σ_f v_f‖² − Σ_f ‖v_f‖²)

Sub-operators (DES eq. 5): M₁ = Σ_f v_f and M₂ = Σ_f ‖v_f‖² over the rank's fields. M₂ enters the logit
linearly, as the first order does, so both cross ranks as the number Σ w − ½ M₂.  ⊕: K + 1 float32 per
example.

Deviations: v_f is the *pooled* vector of a field, so the values of a multi-valued field do not interact with
each other (for single-valued fields it is Rendle's formula). Dense features have a first order only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.forward import ForwardLayers, LayeredModel
from livectr.models.fused import field_sums
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import FieldLinear, FirstOrder
from livectr.models.learning import OptimiserSpec, adagrad, ftrl
from livectr.models.segments import SegmentSpec


@dataclass(frozen=True)
class FM(ModelConfig):
    """Factorization machine of order 2 (Rendle, ICDM 2010; DES §4.2).

    logit = b + Σ w + ½ (‖Σ_f v_f‖² − Σ_f ‖v_f‖²). Use it where pairs of features matter and compute is
    scarce. Do not use it where combinations of three and more features matter: `DeepFM` adds an MLP.

    Args:
        dim: K, float32 values of a vector v.
        optimiser: table optimiser of the vectors v.
        first_order: table optimiser of the weights w.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: of no effect, as no parameter is left to Adam; pipelines and checkpoints know it.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import FM
        >>> config = FM(dim=8)
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, (), dense_local=False, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows [w | v] of 4 examples
        >>> model.partial_size, model(values, None).shape
        (9, torch.Size([4]))
    """

    dim: int = 8
    optimiser: OptimiserSpec = adagrad()
    first_order: OptimiserSpec = ftrl()
    init_scale: float = 0.05
    dense_lr: float = 1e-2

    @property
    def map_of_dense(self) -> str:
        """None: dense features enter the first order alone."""
        return ""

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: w f32[1], v f32[K]."""
        return (
            SegmentSpec("w", 1, self.first_order, order=1),
            SegmentSpec("v", self.dim, self.optimiser, self.init_scale, order=2),
        )

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return FMModel(self.dim, part)


class FMModel(LayeredModel):
    """Network of `FM`; S = 1 + K."""

    def __init__(self, dim: int, part: Part) -> None:
        super().__init__()
        self.partial_size = 1 + dim
        self.wide = FirstOrder(part)
        self.local_axes = self.wide.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1 + K] → [Σ s w − ½ Σ ‖v‖², Σ v] f32[B, 1 + K]."""
        return fm_partial(values, dense, self.wide, columns, online=self.online)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, 1 + K] → logits f32[B]."""
        return fm_finish(aggregated) + self.bias

    def forward_layers(self) -> ForwardLayers | None:
        """See `LayeredModel.forward_layers`."""
        return ForwardLayers(wide=self.wide, pairs=True, dim=self.partial_size - 1)


def fm_partial(
    values: Tensor,
    dense: Tensor | None,
    wide: FirstOrder,
    columns: Columns | None = None,
    layer: FieldLinear | None = None,
    *,
    online: bool = False,
) -> Tensor:
    """Sub-operators of FM.

    Args:
        values: f32[B, F_local, 1 + K], rows [w | v].
        dense: f32[B, Dd] or None.
        wide: first order.
        columns: the features that `values` and `dense` hold; None: all.
        layer: first layer on the same vectors and dense features; its product f32[B, H] precedes FM's result.
        online: as `CTRModel.online`.

    Returns:
        f32[B, 1 + K], with `layer` f32[B, H + 1 + K].
    """
    scale, linear = wide.weights(columns)
    if linear is None or dense is None:
        dense = linear = None
    if layer is None:
        weight = values.new_empty(values.shape[1], values.shape[2] - 1, 0)
        of_dense = None if linear is None else linear.new_empty(len(linear), 0)
    else:
        weight, of_dense = layer.blocks(columns)
    return field_sums(values, scale, weight, dense, of_dense, linear, pairs=not online)


def fm_finish(aggregated: Tensor) -> Tensor:
    """FM's substitution (DES eq. 6) of aggregated f32[B, 1 + K] → f32[B]."""
    first, vectors = aggregated.split([1, aggregated.shape[1] - 1], 1)  # type: ignore[no-untyped-call]
    logits: Tensor = first.squeeze(1) + 0.5 * vectors.square().sum(dim=1)
    return logits
