"""DeepFM (Guo et al., IJCAI 2017) in DES form (DES §4.2, §4.3 and Table 1).

    logit = b + Σ w + ½ (‖Σ_f v_f‖² − Σ_f ‖v_f‖²) + MLP([v_1 … v_F, x_dense])

FM and MLP share the vectors v_f. Sub-operators: FM's (see `models.fm`) and the first layer's block product
Σ_f v_f W_f (DES eq. 8), each rank holding the blocks of its own fields.  ⊕: H₁ + K + 1 float32 a sample.

Deviations: multi-valued fields are sum-pooled before FM (see `models.fm`); dense features enter the MLP and
the first order, not the second.
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
from livectr.models.fm import fm_finish, fm_partial
from livectr.models.layers import MLP, FieldLinear, first_order


@dataclass(frozen=True)
class DeepFM(ModelConfig):
    """DeepFM with vectors of `dim` float32 and an MLP of the `hidden` widths (at least one)."""

    dim: int = 16
    hidden: tuple[int, ...] = (256, 128)
    optimiser: OptimiserSpec = adagrad()
    first_order: OptimiserSpec = ftrl()
    init_scale: float = 0.02
    dense_lr: float = 2e-3

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: w f32[1], v f32[K]."""
        return (
            SegmentSpec("w", 1, self.first_order),
            SegmentSpec("v", self.dim, self.optimiser, self.init_scale),
        )

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return DeepFMModel(self, part)


class DeepFMModel(CTRModel):
    """S = H₁ + 1 + K."""

    linear: nn.Parameter | None

    def __init__(self, config: DeepFM, part: Part) -> None:
        super().__init__()
        self.hidden = config.hidden[0]
        self.partial_size = self.hidden + 1 + config.dim
        self.first = FieldLinear("first", part, dim=config.dim, hidden=self.hidden)
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed)
        self.linear = first_order(part)
        self.local_axes = self.first.local_axes | {"linear": part.local_dense}

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1 + K] → [Σ v W, Σ w − ½ Σ ‖v‖², Σ v] f32[B, H₁ + 1 + K]."""
        return fm_partial(values, dense, self.linear, columns, self.first)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, H₁ + 1 + K] → logits f32[B]."""
        deep, fm = aggregated.split([self.hidden, aggregated.shape[1] - self.hidden], 1)  # type: ignore[no-untyped-call]
        logits: Tensor = self.mlp(deep).squeeze(1)
        return logits + fm_finish(fm) + self.bias
