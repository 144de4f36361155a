"""Attention over behavior histories from a target, shared by DIN and DIEN.

    interest_p = I(behaviors_p, target_p)                              of each pair p of fields
    logit = b + MLP([v of every other field, s(x), interest_1 … interest_P])

A pair is a sequence field and a field of the scored item. Both read one table, so that a clicked ad and the
shown ad have the same vector: `Field(recent(clicks.ad_id, n=50, within="14d"), table="ad")`. Lists come
oldest first. Dense features x enter by s of `models.symlog`.

Sub-operators: the first layer's block product Σ_f v_f W_f (DES eq. 8) over all fields but the behaviors;
an interest's block of the first layer has shared weights.  ⊕: H₁ float32 per example; the vectors
of the targets and of every behavior are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import torch
from torch import Tensor, nn

from livectr.kernels.network.pooling import Channel
from livectr.models.base import ModelConfig
from livectr.models.forward import Block, ForwardLayers, LayeredModel
from livectr.models.inputs import Columns, Gathered, Gathers, Part, Ragged, require_gathered
from livectr.models.layers import MLP, Activation, SubsetLinear, generator, glorot
from livectr.models.learning import OptimiserSpec, adagrad
from livectr.models.products import affine
from livectr.models.segments import SegmentSpec
from livectr.models.settings import check_choice, check_names


@dataclass(frozen=True)
class InterestConfig(ModelConfig):
    """Settings that DIN and DIEN share.

    Args:
        target: field of the scored item for each field of `behaviors`.
        behaviors: sequence fields, each in one pair.
        dim: K, float32 values of a vector v.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        activation: "relu" or "prelu" (a learned slope per unit).
        schedule: learning rates over the number of batches.
    """

    target: tuple[str, ...]
    behaviors: tuple[str, ...]
    dim: int = 16
    hidden: tuple[int, ...] = (256, 128)
    optimiser: OptimiserSpec = adagrad()
    init_scale: float = 0.02
    dense_lr: float = 2e-3
    activation: Activation = field(default="relu", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "activation", get_args(Activation))
        kind = type(self).__name__
        check_names(self, "target", "behaviors")
        if len(self.target) != len(self.behaviors):
            raise ValueError(
                f"{kind} has {len(self.target)} target and {len(self.behaviors)} behavior fields; "
                "name one target for each"
            )
        names = (*set(self.target), *self.behaviors)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{kind} names {', '.join(twice)} twice; a field is a behavior field once")

    def gathers(self, fields: Sequence[str]) -> Gathers:
        """Gathers the targets' vectors and every behavior's vector."""
        return Gathers(tuple(dict.fromkeys(self.target)), self.behaviors)

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: v f32[K]."""
        return (SegmentSpec("v", self.dim, self.optimiser, self.init_scale),)


class InterestModel(LayeredModel):
    """Network with interests, S = H₁; a subclass defines `interest`."""

    def __init__(self, config: InterestConfig, part: Part, width: int) -> None:
        """Builds the layers.

        Args:
            config: the model's settings.
            part: the rank's share.
            width: number of float32 in an interest.
        """
        super().__init__()
        self._pairs = tuple(zip(config.behaviors, config.target, strict=True))
        self._pooled = config.gathers(part.fields).pooled
        self.partial_size = hidden = config.hidden[0]

        def others(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name for name in names if name not in config.behaviors)

        rest = replace(part, fields=others(part.fields), local=others(part.local))
        self.first = SubsetLinear("first", part, rest, dim=config.dim, hidden=hidden)
        self.local_axes = self.first.local_axes
        inputs = len(self._pairs) * width
        fan_in = len(rest.fields) * config.dim + len(part.dense_names) + inputs
        self.interests = nn.Parameter(
            glorot((inputs, hidden), fan_in, hidden, generator(part.seed, "interests"))
        )
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed, config.activation)

    def interest(self, pair: int, behaviors: Ragged, target: Tensor) -> Tensor:
        """Pools the behaviors of a pair.

        Args:
            pair: index of the pair.
            behaviors: lists of f32[nnz, K].
            target: f32[B, K].

        Returns:
            f32[B, width]; 0 for an empty list.
        """
        raise NotImplementedError

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, K] → Σ v W f32[B, H₁], without the behaviors."""
        out: Tensor = self.first(values, dense, columns)
        return out

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, H₁] → logits f32[B]."""
        pairs = self.pairs(gathered)
        return self.logits(aggregated, [self.interest(i, *pair) for i, pair in enumerate(pairs)])

    def pairs(self, gathered: Gathered | None) -> list[tuple[Ragged, Tensor]]:
        """Behaviors, lists of f32[nnz, K], and target f32[B, K] of each pair."""
        seen = require_gathered(gathered)
        return [
            (seen.sequences[behaviors], seen.pooled[:, self._pooled.index(target)])
            for behaviors, target in self._pairs
        ]

    def logits(self, aggregated: Tensor, interests: list[Tensor]) -> Tensor:
        """Aggregated f32[B, H₁] and the pairs' interests f32[B, width] → logits f32[B]."""
        first = affine(aggregated, torch.cat(interests, dim=1), self.interests)
        deep: Tensor = self.mlp(first).squeeze(1)
        return deep + self.bias

    def forward_layers(self) -> ForwardLayers | None:
        """See `LayeredModel.forward_layers`."""
        block = Block(self.interests, self._interests, self.channels)
        return ForwardLayers(self.first, self.mlp, dim=self.first.weight.shape[1], blocks=(block,))

    def channels(self) -> tuple[Channel, ...] | None:
        """Interests of all pairs as a compiled function pools them; None: torch alone computes one."""
        return None

    def _interests(self, gathered: Gathered) -> Tensor:
        """Interests of all pairs, f32[B, pairs · width]."""
        return torch.cat([self.interest(i, *pair) for i, pair in enumerate(self.pairs(gathered))], dim=1)
