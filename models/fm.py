"""Factorisation machine of order 2 (DES §4.2; Rendle, ICDM 2010).

    logit = b + Σ w + ½ (‖Σ_f v_f‖² − Σ_f ‖v_f‖²)

Sub-operators (DES eq. 5): M₁ = Σ_f v_f and M₂ = Σ_f ‖v_f‖² over own fields. M₂ enters the logit linearly, as
the first order does, so that both travel as one number, Σ w − ½ M₂.  ⊕: K + 1 float32 a sample.

Deviations: v_f is the *pooled* vector of a field, so that the values of one multi-valued field do not
interact with each other (for single-valued fields it is Rendle's formula). Dense features have a
first order only.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    ftrl,
)
from livectr.models.fused import field_sums
from livectr.models.layers import FieldLinear, first_order, select


@dataclass(frozen=True)
class FM(ModelConfig):
    """Factorisation machine with latent vectors of `dim` float32."""

    dim: int = 8
    optimiser: OptimiserSpec = adagrad()
    first_order: OptimiserSpec = ftrl()
    init_scale: float = 0.05
    dense_lr: float = 1e-2

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: w f32[1], v f32[K]."""
        return (
            SegmentSpec("w", 1, self.first_order),
            SegmentSpec("v", self.dim, self.optimiser, self.init_scale),
        )

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return FMModel(self.dim, part)


class FMModel(CTRModel):
    """S = 1 + K."""

    linear: nn.Parameter | None

    def __init__(self, dim: int, part: Part) -> None:
        super().__init__()
        self.partial_size = 1 + dim
        self.linear = first_order(part)
        self.local_axes = {"linear": part.local_dense}

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1 + K] → [Σ w − ½ Σ ‖v‖², Σ v] f32[B, 1 + K]."""
        return fm_partial(values, dense, self.linear, columns)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, 1 + K] → logits f32[B]."""
        return fm_finish(aggregated) + self.bias


def fm_partial(
    values: Tensor,
    dense: Tensor | None,
    linear: Tensor | None,
    columns: Columns | None = None,
    layer: FieldLinear | None = None,
) -> Tensor:
    """FM's sub-operators on values f32[B, F_local, 1 + K] → f32[B, 1 + K].

    With a `layer` on the same vectors and dense features, its product f32[B, H] comes before them.
    """
    if linear is None or dense is None:
        dense = linear = None
    elif columns is not None:
        linear = select(linear, columns.dense)
    if layer is None:
        weight = values.new_empty(values.shape[1], values.shape[2] - 1, 0)
        of_dense = None if linear is None else linear.new_empty(len(linear), 0)
    else:
        weight, of_dense = layer.blocks(columns)
    return field_sums(values, weight, dense, of_dense, linear)


def fm_finish(aggregated: Tensor) -> Tensor:
    """FM's substitution (DES eq. 6) of aggregated f32[B, 1 + K] → f32[B]."""
    first, vectors = aggregated.split([1, aggregated.shape[1] - 1], 1)  # type: ignore[no-untyped-call]
    logits: Tensor = first.squeeze(1) + 0.5 * vectors.square().sum(dim=1)
    return logits
