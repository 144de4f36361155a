"""Interface of a CTR model: sub-operators per field, ⊕, a replicated finish (DES Algorithm 1).

    values f32[B, F_local, D_model] ─ partial ─► f32[B, S] ─ ⊕ ─► f32[B, S] ─ finish ─► logits f32[B]
    (rows of this rank's tables)     M_1 … M_m               the same on  ▲  𝓕: replicated
                                     side by side            every rank   │  parameters
    vectors of some fields ────────────────────── gather ─────────────────┘  where a model needs them

`partial` is additive over fields: the partial results of two sets of fields add up to that of their union.
Attention is not additive, because it needs the vectors of different fields together. Such a model names these
fields in `ModelConfig.gathers`, and `finish` gets their vectors.

A model knows no process group: its caller puts ⊕ between `partial` and `finish`. The trainer sums over ranks.
The servers hold every field and leave ⊕ out.

*Local* parameters belong to a field or a dense feature (a block of the first layer). They are stacked on axis
0 and live on the rank of their field. *Shared* parameters are replicated. Both are exported by name, local
parameters per field ("first.weight/user"), so that a run on any number of ranks loads the state of another.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from livectr.models.inputs import Columns, Gathered, Gathers, Part
from livectr.models.learning import Schedule
from livectr.models.segments import SegmentSpec
from livectr.models.settings import check_fields, check_settings
from livectr.models.symlog import MAP

PRIOR = (0.1, 1.9)
"""Pseudo-counts (clicks, misses) of a model before its first example: a CTR of 5 %, worth two examples. The
first batch of a ramp has four, and rows learn the error of a bias that follows them too slowly."""


def prior_log_odds(clicks: float = 0.0, misses: float = 0.0) -> float:
    """Log odds of the mean of Beta(PRIOR) after some clicks and misses; finite for 0 of both.

    Args:
        clicks: number of clicks.
        misses: number of impressions without a click.
    """
    return math.log((PRIOR[0] + clicks) / (PRIOR[1] + misses))


@dataclass(frozen=True)
class FeatureAxes:
    """Axes of a shared parameter, of which some are over the features of the pipeline.

    Attributes:
        axes: lengths whose product is the parameter's size; in place of a length, the features that an axis
            is over, in their order: all fields, the dense features, or the fields and then these.
        from_zero: entries of a feature that joins a model which has learned are zero, else those of a new
            model.
    """

    axes: tuple[Literal["fields", "dense", "features"] | int, ...]
    from_zero: bool = True


@dataclass(frozen=True)
class ModelConfig(ABC):
    """Model of a pipeline file: the segments of its table row, and its network.

    Args:
        schedule: learning rates of tables and network over the number of batches.
    """

    schedule: Schedule = field(default=Schedule(), kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise ValueError(
                f"{type(self).__name__}: schedule is {self.schedule!r}, but must be a Schedule, as by decay()"
            )
        check_settings(self)

    @property
    def dense_lr(self) -> float:
        """Adam's learning rate of the network's parameters; 0 of a model that has none for Adam."""
        return 0.0

    @property
    def map_of_dense(self) -> str:
        """Map of dense features into the network, which gives its weights a meaning; "": none enters."""
        return MAP

    @abstractmethod
    def segments(self) -> tuple[SegmentSpec, ...]:
        """Segments of the model's table row, in the order of the last axis of `partial`'s values."""

    def check(self, fields: Sequence[str], dense_names: Sequence[str]) -> None:
        """Checks the feature names of the configuration.

        Args:
            fields: all sparse fields of the pipeline.
            dense_names: all dense features of the pipeline.

        Raises:
            ValueError: the configuration names another feature.
        """
        wanted = self.gathers(fields)
        check_fields(self, (*wanted.pooled, *wanted.sequences, *wanted.content), fields)

    def gathers(self, fields: Sequence[str]) -> Gathers:
        """Inputs of `finish` besides ⊕; `fields` are all sparse fields of the pipeline."""
        return Gathers()

    @abstractmethod
    def network(self, part: Part) -> CTRModel:
        """Network of the rank that holds `part`."""

    def of_roles(self, roles: Sequence[str]) -> dict[str, ModelConfig]:
        """Configurations of the ranking model's role and of its targets' roles, in this order.

        Each has a row and a network of its own, unless the model shares them (`models.multi_task`).
        """
        return dict.fromkeys(roles, self)

    def build(
        self,
        fields: Sequence[str],
        local: Sequence[str],
        dense_names: Sequence[str],
        dense_local: bool,
        seed: int,
    ) -> CTRModel:
        """Builds the network of a rank.

        Initial values depend on the seed and the names of parameter and field, not on the ranks.

        Args:
            fields: all sparse fields of the pipeline.
            local: the fields that the rank holds.
            dense_names: all dense features of the pipeline.
            dense_local: the rank holds the dense features.
            seed: seed of the initial values.

        Raises:
            ValueError: the configuration names a feature that does not exist.
        """
        self.check(fields, dense_names)
        return self.network(Part(tuple(fields), tuple(local), tuple(dense_names), dense_local, seed))

    @property
    def width(self) -> int:
        """D_model: number of float32 values in the model's part of a table row."""
        return sum(segment.dim for segment in self.segments())


class CTRModel(nn.Module):
    """CTR network as DES sub-operators; the docstring of the module has the shapes.

    Attributes:
        partial_size: S, number of float32 that cross ranks for each example.
        local_axes: local parameter → the fields or dense features along its axis 0.
        feature_axes: shared parameter → its axes over all features of the pipeline, where it has any.
        bias: b of the logit, f32[]; every model adds it last. It starts at the log odds of a small CTR.
        online: first and second order of the next batch are learned example by example
            (`trainer.des.online`): backward leaves the second order's share out of the vectors' gradient.
    """

    partial_size: int
    local_axes: dict[str, tuple[str, ...]]
    feature_axes: dict[str, FeatureAxes]
    bias: nn.Parameter
    online: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(prior_log_odds()))
        self.local_axes, self.feature_axes = {}, {}

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Computes the sub-operators of this rank's fields (DES §3.2).

        Only field-local parameters take part, so that the partial results of disjoint features can be summed.

        Args:
            values: f32[B, F_local, D_model], pooled rows.
            dense: f32[B, Dd], or None; used only on the rank of the dense features.
            columns: the features that `values` and `dense` hold; None: all of the rank.

        Returns:
            f32[B, S].
        """
        raise NotImplementedError

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Computes the logits from the aggregated partial results.

        Args:
            aggregated: f32[B, S], ⊕ of the partial results of every rank.
            gathered: the tensors that the configuration's `gathers` names.

        Returns:
            f32[B].
        """
        raise NotImplementedError

    def finish_with_loss(
        self, aggregated: Tensor, gathered: Gathered | None, label: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the logits, and an auxiliary loss that is added to the labels' loss.

        The trainer calls it in place of `finish`; servers never do. The loss is a sum over the examples, each
        term a function of its example alone: the sums of ranks then add up to the loss of a single rank.

        Args:
            aggregated: see `finish`.
            gathered: see `finish`.
            label: f32[B] in {0, 1, LATE} (`models.losses`).

        Returns:
            The logits f32[B] of `finish`, and the loss f32[]; None where the model has none.
        """
        return self.finish(aggregated, gathered), None

    def forward(self, values: Tensor, dense: Tensor | None, gathered: Gathered | None = None) -> Tensor:
        """Logits f32[B] of the complete model, in a process that holds every field."""
        return self.finish(self.partial(values, dense), gathered)

    def by_name(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Splits tensors, named and shaped like the parameters, into (local, shared) by exported name.

        Local tensors are views, one for each field: writing into them writes into the stack.
        """
        local: dict[str, Tensor] = {}
        shared: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if name in self.local_axes:
                local |= {f"{name}/{part}": tensor[i] for i, part in enumerate(self.local_axes[name])}
            else:
                shared[name] = tensor
        return local, shared

    def local_state(self) -> dict[str, Tensor]:
        """This rank's field-local parameters, "first.weight/<field>" → view of the parameter."""
        return self.by_name({n: p.detach() for n, p in self.named_parameters()})[0]

    def shared_state(self) -> dict[str, Tensor]:
        """Replicated parameters by name, detached; they share memory with the model."""
        return self.by_name({n: p.detach() for n, p in self.named_parameters()})[1]

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copies this rank's share out of an exported state, which may hold more.

        Raises:
            KeyError: a parameter is missing.
            ValueError: a parameter has another shape.
        """
        copy_named(self.local_state() | self.shared_state(), state)


def copy_named(targets: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copies `state[name]` into every target.

    Raises:
        KeyError: a name is missing.
        ValueError: a tensor has another shape.
    """
    for name, target in targets.items():
        if name not in state:
            raise KeyError(name)
        if state[name].shape != target.shape:
            raise ValueError(f"{name} has shape {list(state[name].shape)}, expected {list(target.shape)}")
        target.copy_(state[name])
