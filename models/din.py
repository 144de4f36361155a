"""Deep Interest Network (Zhou et al., KDD 2018): a user's interest in this very target.

    interest = Σ_b a(v_b, v_t) v_b                 b: behaviors, t: target; a: `models.attention`

The rest, the pairs of fields, the sub-operators and what is gathered: `models.interest`.  ⊕: H₁ float32 a
sample; gathered: K for each target and each behavior.

Deviations: PReLU, which the paper compares with its Dice: Dice normalises by the batch, so that an example's
logit would depend on its neighbours, and differ in serving; no mini-batch aware regularisation (the tables'
optimisers touch the batch's rows only). v_b − v_t and v_b ∘ v_t stand for the unit's outer product, as in
the authors' code. Where a behavior has several fields (ad and category), each pair of fields has its own
unit and interest, in place of one unit on the joined vectors: their lists may then differ in length.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from livectr.models.attention import ActivationUnit
from livectr.models.base import CTRModel, Part, Ragged
from livectr.models.interest import InterestConfig, InterestModel


@dataclass(frozen=True)
class DIN(InterestConfig):
    """An activation unit of the `attention` widths, an MLP of the `hidden` ones, vectors of `dim` float32."""

    attention: tuple[int, ...] = (32, 16)

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return DINModel(self, part)


class DINModel(InterestModel):
    """S = H₁; an interest has K float32."""

    def __init__(self, config: DIN, part: Part) -> None:
        super().__init__(config, part, config.dim)
        self.units = nn.ModuleList(
            ActivationUnit(f"unit/{behaviors}", config.dim, config.attention, part.seed)
            for behaviors in config.behaviors
        )

    def interest(self, pair: int, behaviors: Ragged, target: Tensor) -> Tensor:
        """See `InterestModel.interest`."""
        out: Tensor = self.units[pair](behaviors, target)
        return out
