"""What every CTR model is: sub-operators on a rank's own fields, ⊕, a replicated finish (DES Algorithm 1).

    values f32[B, F_local, D_model] ─ partial ─► f32[B, S] ─ ⊕ ─► f32[B, S] ─ finish ─► logits f32[B]
    (rows of this rank's tables)     M_1 … M_m               the same on  ▲  𝓕: replicated
                                     side by side            every rank   │  parameters
    vectors of some fields ────────────────────── gather ─────────────────┘  where a model wants them

`partial` is additive: what it makes of some fields and of the others adds up to what it makes of all. Where
that is not enough (attention needs vectors of different fields side by side) a model names the fields whose
vectors `finish` gets besides (`ModelConfig.gathers`).

A model asks for no process group: whoever runs it puts ⊕ between `partial` and `finish`. The trainer sums
over ranks; the servers hold every field and leave ⊕ out.

Parameters are of two kinds. *Local* ones belong to a field or a dense feature (a block of the first layer):
they are stacked on axis 0 and live where their field lives. *Shared* ones are replicated. Both are exported
by name, the local ones per field ("first.weight/user"), so that any number of ranks loads what any other
number has written.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from livectr.models.settings import check_fields, check_settings

PRIOR = (1.0, 19.0)
"""Clicks and misses that a model believes to have seen before its first example: 5 %, held loosely."""


def prior_log_odds(clicks: float = 0.0, misses: float = 0.0) -> float:
    """Log odds of the mean of Beta(PRIOR) after so many clicks and misses; finite without any."""
    return math.log((PRIOR[0] + clicks) / (PRIOR[1] + misses))


@dataclass(frozen=True)
class OptimiserSpec:
    """A table optimiser by its name in `kernels.table.layout`; `params` are those that differ from its
    defaults."""

    name: str
    params: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        known = OPTIMISERS[self.name]
        for name, value in self.params:
            if name not in known:
                raise ValueError(f"{self.name} has no parameter {name!r}; it has {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{self.name}: {name} is {value!r}, but must be a number of at least 0")
            if name == "alpha" and not value:
                raise ValueError(f"{self.name}: alpha is 0, but it divides: it must be above 0")


OPTIMISERS = {
    "SGD": ("lr", "adaptive_l2"),
    "AdaGrad": ("lr", "eps", "initial", "adaptive_l2"),
    "RowAdaGrad": ("lr", "eps", "initial", "adaptive_l2"),
    "Adam": ("lr", "beta1", "beta2", "eps", "adaptive_l2"),
    "FTRL": ("alpha", "beta", "l1", "l2"),
}
"""Parameters of the optimisers in `kernels.table.layout`; `adaptive_l2` is that of its `Adaptive`, off at
0."""


def sgd(**params: float) -> OptimiserSpec:
    """Stochastic gradient descent: `lr`, `adaptive_l2`."""
    return OptimiserSpec("SGD", tuple(params.items()))


def adagrad(**params: float) -> OptimiserSpec:
    """AdaGrad (Duchi et al. 2011): `lr`, `eps`, `initial`, `adaptive_l2`."""
    return OptimiserSpec("AdaGrad", tuple(params.items()))


def rowwise_adagrad(**params: float) -> OptimiserSpec:
    """AdaGrad with one sum a row and segment, of mean squared gradients (FBGEMM): `lr`, `eps`, `initial`,
    `adaptive_l2`."""
    return OptimiserSpec("RowAdaGrad", tuple(params.items()))


def adam(**params: float) -> OptimiserSpec:
    """Adam (Kingma & Ba 2014): `lr`, `beta1`, `beta2`, `eps`, `adaptive_l2`."""
    return OptimiserSpec("Adam", tuple(params.items()))


def ftrl(**params: float) -> OptimiserSpec:
    """FTRL-proximal (McMahan et al. 2013): `alpha`, `beta`, `l1`, `l2`."""
    return OptimiserSpec("FTRL", tuple(params.items()))


@dataclass(frozen=True)
class Schedule:
    """Learning rates over time: after `step` batches every rate of a model, those of its table rows and of
    its network, is `factor(step)` times what it was set to.

    The factor is `decay` to the power of how often `every` batches have passed: a pure function of the step,
    so that a resumed run goes on as if it had not stopped. With decay 1, or every 0, it stays 1.
    """

    decay: float = 1.0
    every: int = 0

    def __post_init__(self) -> None:
        decay, every = self.decay, self.every
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 < decay <= 1:
            raise ValueError(f"Schedule: the factor is {decay!r}, but must be above 0 and at most 1")
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise ValueError(f"Schedule: every is {every!r}, but must be a whole number of batches")

    def __str__(self) -> str:
        return f"times {self.decay:g} every {self.every:,} batches" if self.every else "constant"

    def factor(self, step: int) -> float:
        """Factor of the rates in the update that follows `step` others; at least 1e-6, never 0."""
        return max(self.decay ** (step // self.every), 1e-6) if self.every else 1.0


def decay(factor: float = 0.9, every: int = 24_000) -> Schedule:
    """Rates times `factor` after every `every` batches; the defaults are DICM's (Ge et al. 2018)."""
    if not every:
        raise ValueError("decay: every is 0, but must be at least one batch")
    return Schedule(factor, every)


@dataclass(frozen=True)
class SegmentSpec:
    """A stretch of a table row: `dim` float32 values, learned by one optimiser.

    A row that is not stored yet starts uniform in (-init_scale, init_scale).
    """

    name: str
    dim: int
    optimiser: OptimiserSpec
    init_scale: float = 0.0


@dataclass(frozen=True)
class Part:
    """What a rank holds of a model: `local` out of `fields`, and either all dense features or none."""

    fields: tuple[str, ...]
    local: tuple[str, ...]
    dense_names: tuple[str, ...]
    dense_local: bool
    seed: int

    @property
    def local_dense(self) -> tuple[str, ...]:
        """The dense features that live here."""
        return self.dense_names if self.dense_local else ()


@dataclass(frozen=True)
class Columns:
    """Some of what a rank holds: numbers, ascending, among its own fields and among its dense features."""

    fields: tuple[int, ...]
    dense: tuple[int, ...]


@dataclass(frozen=True)
class Gathers:
    """What `finish` needs of every sample beside ⊕.

    pooled: fields whose sum-pooled vector it needs. sequences: fields whose every key's vector it needs, in
    the order of the list. dense: whether it needs the dense features. content: fields whose keys are ids of
    content (images, texts), of which it needs every vector of the sub-model (`models.embedding`).
    """

    pooled: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    dense: bool = False
    content: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pooled or self.sequences or self.dense or self.content)


@dataclass(frozen=True)
class Ragged:
    """Lists of vectors: those of sample b are values[offsets[b] : offsets[b + 1]].

    values: f32[nnz, D_model]. offsets: i64[B + 1]. same: whether all lists are known to be alike, as those of
    the user are in a request.
    """

    values: Tensor
    offsets: Tensor
    same: bool = False


@dataclass(frozen=True)
class Gathered:
    """What `Gathers` names, of B samples: pooled f32[B, Fp, D_model] in the order of its names, sequences by
    name, dense f32[B, Dd] if it asks for them, content by name (vectors of the sub-model's `out` numbers)."""

    pooled: Tensor
    sequences: Mapping[str, Ragged]
    dense: Tensor | None = None
    content: Mapping[str, Ragged] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelConfig(ABC):
    """A model as a pipeline file names it: what it keeps in a table row, and how its network is built.

    schedule: how all its learning rates, tables' and network's, change with the number of batches.
    """

    schedule: Schedule = field(default=Schedule(), kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise ValueError(
                f"{type(self).__name__}: schedule is {self.schedule!r}, but must be a Schedule, as by decay()"
            )
        check_settings(self)

    @property
    @abstractmethod
    def dense_lr(self) -> float:
        """Adam's learning rate for the network's own parameters (the tables have their optimisers)."""

    @abstractmethod
    def segments(self) -> tuple[SegmentSpec, ...]:
        """The model's stretch of a table row, in the order of `partial`'s last axis."""

    def check(self, fields: Sequence[str], dense_names: Sequence[str]) -> None:
        """Raises ValueError when the configuration names a feature that is not among these."""
        wanted = self.gathers(fields)
        check_fields(self, (*wanted.pooled, *wanted.sequences, *wanted.content), fields)

    def gathers(self, fields: Sequence[str]) -> Gathers:
        """What `finish` needs whole, out of the pipeline's `fields`."""
        return Gathers()

    @abstractmethod
    def network(self, part: Part) -> CTRModel:
        """The network of a rank that holds `part`."""

    def build(
        self,
        fields: Sequence[str],
        local: Sequence[str],
        dense_names: Sequence[str],
        dense_local: bool,
        seed: int,
    ) -> CTRModel:
        """The network of a rank that owns the fields `local` out of `fields`, and the dense features or not.

        Initial values depend on the seed, the parameter's and the field's name only: not on the ranks.
        Raises ValueError when the configuration names a feature that does not exist.
        """
        self.check(fields, dense_names)
        return self.network(Part(tuple(fields), tuple(local), tuple(dense_names), dense_local, seed))

    @property
    def width(self) -> int:
        """D_model: float32 values per table row."""
        return sum(segment.dim for segment in self.segments())


def require_gathered(gathered: Gathered | None) -> Gathered:
    """What `finish` cannot do without; raises ValueError where it was not gathered."""
    if gathered is None:
        raise ValueError("this model's finish needs the vectors that its configuration's gathers() names")
    return gathered


def row_segments(configs: Mapping[str, ModelConfig]) -> tuple[SegmentSpec, ...]:
    """The table row that a pipeline's models share; role "rank" gives segments "rank.w", "rank.v", …"""
    return tuple(
        SegmentSpec(f"{role}.{s.name}", s.dim, s.optimiser, s.init_scale)
        for role, config in configs.items()
        for s in config.segments()
    )


def role_slices(configs: Mapping[str, ModelConfig]) -> dict[str, slice]:
    """Where each role's values are on a row's axis of D float32."""
    slices: dict[str, slice] = {}
    start = 0
    for role, config in configs.items():
        slices[role] = slice(start, start + config.width)
        start += config.width
    return slices


class CTRModel(nn.Module):
    """A CTR network as DES sub-operators; see the module's docstring for the shapes.

    Attributes:
        partial_size: S, the float32 that cross ranks for each sample.
        local_axes: name of a local parameter → the fields or dense features along its axis 0.
        bias: b of the logit, f32[]; every model adds it last. It starts at the log odds of a small CTR.
    """

    partial_size: int
    local_axes: dict[str, tuple[str, ...]]
    bias: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(prior_log_odds()))
        self.local_axes = {}

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Sub-operators on own fields: f32[B, F_local, D_model], dense f32[B, Dd] or None → f32[B, S].

        Only field-local parameters take part, so that partial results of any parts can be summed. `dense` is
        looked at only where the dense features live. With `columns`, `values` and `dense` have only these:
        partial results of parts that make up everything add up to that of the whole.
        """
        raise NotImplementedError

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """⊕ of every rank's partial results f32[B, S], and what the model gathers → logits f32[B]."""
        raise NotImplementedError

    def forward(self, values: Tensor, dense: Tensor | None, gathered: Gathered | None = None) -> Tensor:
        """The whole model where one process holds every field: logits f32[B]."""
        return self.finish(self.partial(values, dense), gathered)

    def by_name(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Splits tensors, named and shaped like the parameters, into (local, shared) ones by exported name.

        The local ones are views, one per field: writing into them writes into the stack.
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
        """This rank's field-local parameters, "first.weight/<field>" → tensor (views of the live ones)."""
        return self.by_name({n: p.detach() for n, p in self.named_parameters()})[0]

    def shared_state(self) -> dict[str, Tensor]:
        """The replicated parameters by name (the live ones, detached)."""
        return self.by_name({n: p.detach() for n, p in self.named_parameters()})[1]

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copies this rank's share out of an exported state, which may hold more.

        Raises KeyError naming a missing parameter, ValueError for one of another shape.
        """
        copy_named(self.local_state() | self.shared_state(), state)


def copy_named(targets: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copies `state[name]` into every target; raises KeyError (missing) or ValueError (shape) by name."""
    for name, target in targets.items():
        if name not in state:
            raise KeyError(name)
        if state[name].shape != target.shape:
            raise ValueError(f"{name} has shape {list(state[name].shape)}, expected {list(target.shape)}")
        target.copy_(state[name])
