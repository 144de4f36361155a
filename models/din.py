"""Deep Interest Network (Zhou et al., KDD 2018): a user's interest in this very target.

    interest = Σ_b a(v_b, v_t) v_b                 b: behaviours, t: target; the weights need not sum to 1
    a = MLP([v_b, v_t, v_b − v_t, v_b ∘ v_t])      the local activation unit, with PReLU

The rest, the pairs of fields, the sub-operators and what is gathered: `models.interest`.  ⊕: H₁ float32 a
sample; gathered: K for each target and each behaviour.

Deviations: PReLU, which the paper compares with its Dice: Dice normalises by the batch, so that an example's
logit would depend on its neighbours, and differ in serving; no mini-batch aware regularisation (the tables'
optimisers touch the batch's rows only). v_b − v_t and v_b ∘ v_t stand for the unit's outer product, as in
the authors' code. Where a behaviour has several fields (ad and category), each pair of fields has its own
unit and interest, in place of one unit on the joined vectors: their lists may then differ in length.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.base import CTRModel, Part, Ragged
from models.interest import InterestConfig, InterestModel
from models.layers import matrix
from models.ragged import list_sum, spread


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
            ActivationUnit(f"unit/{behaviours}", config.dim, config.attention, part.seed)
            for behaviours in config.behaviours
        )

    def interest(self, pair: int, behaviours: Ragged, target: Tensor) -> Tensor:
        """See `InterestModel.interest`."""
        seen, offsets = behaviours.values, behaviours.offsets
        weight = self.units[pair](seen, spread(target, offsets))
        return list_sum(weight * seen, offsets)


class ActivationUnit(nn.Module):
    """a(v_b, v_t): its hidden layers have a PReLU with a slope for each unit, starting at ¼."""

    def __init__(self, name: str, dim: int, widths: tuple[int, ...], seed: int) -> None:
        super().__init__()
        sizes = (4 * dim, *widths, 1)
        pairs = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList(matrix(seed, f"{name}.{i}", a, b) for i, (a, b) in enumerate(pairs))
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs)
        self.slopes = nn.ParameterList(torch.full((b,), 0.25) for b in widths)

    def forward(self, behaviours: Tensor, targets: Tensor) -> Tensor:
        """f32[nnz, K] twice → f32[nnz, 1]."""
        x = torch.cat([behaviours, targets, behaviours - targets, behaviours * targets], dim=1)
        for i, slope in enumerate(self.slopes):
            x = nn.functional.prelu(torch.addmm(self.biases[i], x, self.weights[i]), slope)
        return torch.addmm(self.biases[-1], x, self.weights[-1])
