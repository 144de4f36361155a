"""Deep Interest Network (Zhou et al., KDD 2018): target attention over the user's behaviors.

    interest = Σ_b a(v_b, v_t) v_b                 b: behaviors, t: target; a: `models.attention`

`models.interest` has the rest: the pairs of fields, the sub-operators and the gathered vectors.  ⊕: H₁
float32 per example; gathered: K for each target and each behavior.

Deviations: PReLU, which the paper compares with its Dice. Dice normalises by the batch: an example's
logit would depend on its neighbours, and differ in serving. No mini-batch aware regularisation: the tables'
optimisers touch the batch's rows only. v_b − v_t and v_b ∘ v_t stand for the unit's outer product, as in
the authors' code. Where a behavior has several fields (ad and category), each pair of fields has its own
unit and interest, instead of one unit on the joined vectors: their lists may then differ in length.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from livectr.kernels.network.pooling import Channel, Pool, VectorList
from livectr.models.attention import ActivationUnit
from livectr.models.base import CTRModel
from livectr.models.inputs import Part, Ragged
from livectr.models.interest import InterestConfig, InterestModel


@dataclass(frozen=True)
class DIN(InterestConfig):
    """Deep Interest Network (Zhou et al., KDD 2018, §4.3).

    Interest = Σ_b a(v_b, v_t) v_b, an input of the MLP. Use it where a user's past clicks are known and the
    shown ad decides which of them matter. Do not use it for users without a history, or where the order of
    clicks matters (`DIEN`).

    Args:
        target: field of the scored item for each field of `behaviors`; a pair shares a table.
        behaviors: sequence fields, oldest item first.
        dim: K, float32 values of a vector v.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        attention: units of the hidden layers of the activation unit a.
        activation: "relu" or "prelu" (a learned slope per unit) of the MLP.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import DIN, Gathered, Ragged
        >>> config = DIN(target=("ad",), behaviors=("clicked_ads",), dim=8, hidden=(32, 16), attention=(16,))
        >>> fields = ("user", "ad", "clicked_ads")
        >>> model = config.build(fields, fields, (), dense_local=False, seed=1)
        >>> values = torch.zeros(2, len(fields), config.width)  # rows v of 2 examples
        >>> clicks = Ragged(torch.zeros(3, config.width), torch.tensor([0, 3, 3]))  # 3 clicks, none
        >>> gathered = Gathered(pooled=values[:, 1:2], sequences={"clicked_ads": clicks})
        >>> model.partial_size, model(values, None, gathered).shape
        (32, torch.Size([2]))
    """

    attention: tuple[int, ...] = (32, 16)

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return DINModel(self, part)


class DINModel(InterestModel):
    """Network of `DIN`; S = H₁, an interest has K float32."""

    def __init__(self, config: DIN, part: Part) -> None:
        super().__init__(config, part, config.dim)
        self._width = config.dim
        self.units = nn.ModuleList(
            ActivationUnit(f"unit/{behaviors}", config.dim, config.attention, part.seed)
            for behaviors in config.behaviors
        )

    def interest(self, pair: int, behaviors: Ragged, target: Tensor) -> Tensor:
        """See `InterestModel.interest`."""
        out: Tensor = self.units[pair](behaviors, target)
        return out

    def channels(self) -> tuple[Channel, ...] | None:
        """See `InterestModel.channels`."""
        found = []
        for unit, (behaviors, target) in zip(self.units, self._pairs, strict=True):
            assert isinstance(unit, ActivationUnit)
            if (compiled := unit.compiled(target)) is not None:
                values = VectorList(behaviors, self._width, content=False)
                found.append(Channel(Pool.ATTENTION, values, unit=compiled))
        return tuple(found) if len(found) == len(self._pairs) else None
