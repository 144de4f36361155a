"""FLEN, the field-leveraged embedding network (Chen et al. 2019, arXiv:1911.04690; DES Table 3).

Fields form M groups, for example user, item and context; e_m = Σ_{f in m} v_f.

    h_MF = Σ_{m < n} r_mn e_m ∘ e_n                        between groups
    h_FM = Σ_m r_mm (e_m ∘ e_m − Σ_{f in m} v_f ∘ v_f)      within groups
    logit = b + Σ w + uᵀ (h_MF + h_FM) + MLP([v_1 … v_F, s(x)])

Sub-operators: per group e_m and Σ v_f ∘ v_f as in FM (DES eq. 5), Σ w as in LR, and the first layer's block
product Σ_f v_f W_f (DES eq. 8): "same as DeepFM" in DES Table 3.  ⊕: H₁ + 1 + 2 M K float32 per example.

Deviations: h_MF + h_FM goes straight into the output layer, beside the MLP's last hidden layer, as in
DeepCTR's implementation, without a ReLU layer of its own; no Dicefactor (a dropout: a step would not be
repeatable); a field in no group takes part in Σ w and the MLP only; multi-valued fields are sum-pooled;
dense features x enter the MLP by s of `models.symlog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import MLP, FieldLinear, FirstOrder, index_on, matrix
from livectr.models.learning import OptimiserSpec, adagrad, ftrl
from livectr.models.segments import SegmentSpec
from livectr.models.settings import check_fields


@dataclass(frozen=True)
class FLEN(ModelConfig):
    """Field-leveraged embedding network (Chen et al. 2019, arXiv:1911.04690).

    It has products between groups of fields:

    logit = b + Σ w + uᵀ (Σ_{m<n} r_mn e_m ∘ e_n + h_FM) + MLP, with e_m = Σ v_f of group m. Use it where
    fields fall into groups such as user, ad and context. Do not use it without a grouping that you trust:
    `DeepFM` needs none.

    Args:
        groups: M groups of field names; a field is in at most one group.
        dim: K, float32 values of a vector v.
        hidden: units of the MLP's hidden layers, H₁ first; at least one layer.
        optimiser: table optimiser of the vectors v.
        first_order: table optimiser of the weights w.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the network's parameters.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import FLEN
        >>> config = FLEN(groups=(("user", "age"), ("ad",)), dim=8, hidden=(32, 16))
        >>> fields = ("user", "age", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows [w | v] of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (65, torch.Size([4]))
    """

    groups: tuple[tuple[str, ...], ...]
    dim: int = 16
    hidden: tuple[int, ...] = (256, 128)
    optimiser: OptimiserSpec = adagrad()
    first_order: OptimiserSpec = ftrl()
    init_scale: float = 0.02
    dense_lr: float = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.groups, tuple) or not self.groups or not all(map(_is_group, self.groups)):
            raise ValueError(
                f"FLEN: groups is {self.groups!r}, but must be groups of field names, "
                'as in (("user", "age"), ("ad", "category"))'
            )
        names = [name for group in self.groups for name in group]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"FLEN has {', '.join(twice)} more than once in its groups; leave it in one")

    def check(self, fields: Sequence[str], dense_names: Sequence[str]) -> None:
        """Checks the configuration as `ModelConfig.check` does; groups hold sparse fields only."""
        check_fields(self, (name for group in self.groups for name in group), fields)

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: w f32[1], v f32[K]."""
        return (
            SegmentSpec("w", 1, self.first_order, order=1),
            SegmentSpec("v", self.dim, self.optimiser, self.init_scale),
        )

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return FLENModel(self, part)


def _is_group(group: object) -> bool:
    return isinstance(group, tuple) and bool(group) and all(isinstance(name, str) for name in group)


class FLENModel(CTRModel):
    """Network of `FLEN`; S = H₁ + 1 + 2·M·K.

    Attributes:
        within: r_mm, f32[M]; it starts at ½, FM's weight.
        between: r_mn + r_nm, f32[M, M], whose upper triangle is used; it starts at 1.
        output: u, f32[K, 1].
    """

    def __init__(self, config: FLEN, part: Part) -> None:
        super().__init__()
        self.hidden, self.dim, self.groups = config.hidden[0], config.dim, len(config.groups)
        self.partial_size = self.hidden + 1 + 2 * self.groups * self.dim
        self.first = FieldLinear("first", part, dim=config.dim, hidden=self.hidden)
        self.mlp = MLP("mlp", (*config.hidden, 1), part.seed)
        self.wide = FirstOrder(part)
        self.within = nn.Parameter(torch.full((self.groups,), 0.5))
        self.between = nn.Parameter(torch.ones(self.groups, self.groups))
        self.output = matrix(part.seed, "output", config.dim, 1)
        self._members = tuple(
            frozenset(i for i, field in enumerate(part.local) if field in group) for group in config.groups
        )
        self.local_axes = self.first.local_axes | self.wide.local_axes

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, 1 + K] → [Σ v W, Σ w, e_m, Σ v ∘ v of each group] f32[B, S]."""
        vectors = values[..., 1:]
        wide = self.wide(values, dense, columns)
        deep = self.first(vectors, dense, columns)
        groups = [self._group_vectors(group, vectors, columns) for group in self._members]
        sums = [group.sum(dim=1) for group in groups]
        return torch.cat([deep, wide, *sums, *(group.square().sum(dim=1) for group in groups)], dim=1)

    def _group_vectors(self, group: frozenset[int], vectors: Tensor, columns: Columns | None) -> Tensor:
        """Selects the vectors of a group's fields on this rank.

        A product with 0 and 1 would round them in bf16.
        """
        fields = range(vectors.shape[1]) if columns is None else columns.fields
        places = tuple(place for place, field in enumerate(fields) if field in group)
        return vectors.index_select(1, index_on(places, vectors.device))

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, S] → logits f32[B]."""
        deep, wide = aggregated[:, : self.hidden], aggregated[:, self.hidden]
        rest = aggregated[:, self.hidden + 1 :]
        sums, squares = rest.reshape(-1, 2, self.groups, self.dim).unbind(1)
        others = self.between.triu(1) @ sums  # Σ_{n > m} r_mn e_n of each m
        pairs = (sums * others).sum(dim=1)
        pairs = pairs + self.within @ (sums.square() - squares)
        out: Tensor = (pairs @ self.output + self.mlp(deep)).squeeze(1)
        return out + wide + self.bias
