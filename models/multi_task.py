"""Heads of several targets over shared tables and networks: what shared-bottom, MMoE and PLE have in common.

    x = [v_1 … v_F, s(x)]        rows of the shared tables, and dense features
    u_k = trunk_k(x)             input of task k's tower, f32[H]; tasks: the click, then the targets
    logit_k = b_k + tower_k(u_k)

The trunk is the network of role "rank": it has the table row, ⊕ of all first layers and gates, and the tower
of the click. The network of a target's role has its tower and its bias alone: neither a row nor a partial
result. So every role has a bias, a rate and a loss of its own, and one backward pass sums what all tasks
teach the trunk and the rows.

In DES form (DES §3.2), what is linear in x is a sub-operator: the first layers of all experts, and the logits
of gates that take x. They are summed over the ranks together. All else is replicated.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from livectr.models.base import CTRModel, ModelConfig
from livectr.models.inputs import Columns, Gathered, Part
from livectr.models.layers import FieldLinear, generator, kaiming
from livectr.models.learning import OptimiserSpec, adagrad
from livectr.models.products import affine
from livectr.models.segments import SegmentSpec


@dataclass(frozen=True)
class MultiTask(ModelConfig):
    """Ranking model whose targets share its row and its trunk.

    Args:
        dim: K, float32 values of a vector v.
        hidden: units of the layers of the bottom, or of each expert; at least one layer.
        tower: units of the hidden layers of each task's tower; (): a linear tower.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the networks' parameters.
    """

    dim: int = 16
    hidden: tuple[int, ...] = (128, 64)
    tower: tuple[int, ...] = (32,)
    optimiser: OptimiserSpec = adagrad()
    init_scale: float = 0.02
    dense_lr: float = 2e-3

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row: v f32[K]."""
        return (SegmentSpec("v", self.dim, self.optimiser, self.init_scale),)

    @abstractmethod
    def trunk(self, part: Part, tasks: int) -> TrunkModel:
        """Network of so many tasks, with the tower of the first."""

    def network(self, part: Part) -> CTRModel:
        """Network of the click alone; see `ModelConfig.network`."""
        return self.trunk(part, 1)

    def of_roles(self, roles: Sequence[str]) -> dict[str, ModelConfig]:
        """See `ModelConfig.of_roles`: the first role has the trunk, the others have towers."""
        first, *others = roles
        trunk = Trunk(self, len(roles), schedule=self.schedule)
        return {first: trunk} | {
            role: Task(self, first, number, schedule=self.schedule) for number, role in enumerate(others, 1)
        }


@dataclass(frozen=True)
class Trunk(ModelConfig):
    """Trunk of a multi-task model, with the tower of its first task.

    Args:
        of: the model.
        tasks: their number.
    """

    of: MultiTask
    tasks: int

    @property
    def dense_lr(self) -> float:
        """Adam's learning rate."""
        return self.of.dense_lr

    def segments(self) -> tuple[SegmentSpec, ...]:
        """Row of the model."""
        return self.of.segments()

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return self.of.trunk(part, self.tasks)


@dataclass(frozen=True)
class Task(ModelConfig):
    """Tower of a task of a multi-task model; it has no row.

    Args:
        of: the model.
        trunk: role of the trunk.
        number: of the task, from 1.
    """

    of: MultiTask
    trunk: str
    number: int

    def __post_init__(self) -> None:
        """The model has checked its settings; this has no width."""

    @property
    def dense_lr(self) -> float:
        """Adam's learning rate."""
        return self.of.dense_lr

    def segments(self) -> tuple[SegmentSpec, ...]:
        """No row."""
        return ()

    def network(self, part: Part) -> CTRModel:
        """See `ModelConfig.network`."""
        return TaskModel(self, part)


class Tower(nn.Module):
    """Tower of a task: relu layers, and an output of one unit without activation."""

    def __init__(self, name: str, sizes: Sequence[int], seed: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise((*sizes, 1)))
        self.weights = nn.ParameterList(
            kaiming(a, b, generator(seed, f"{name}.{i}")) for i, (a, b) in enumerate(pairs)
        )
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs f32[B, H] to numbers f32[B]."""
        for weight, bias in zip(self.weights, self.biases, strict=False):
            x = affine(bias, x, weight).relu()
        last: Tensor = self.weights[-1]
        return (x * last.squeeze(1)).sum(1)  # equal rows, equal bits: no product


class Hidden(nn.Module):
    """Layers of a bottom or an expert behind the first product, each with relu."""

    def __init__(self, name: str, sizes: Sequence[int], seed: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        self.first_bias = nn.Parameter(torch.zeros(sizes[0]))
        self.weights = nn.ParameterList(
            kaiming(a, b, generator(seed, f"{name}.{i}")) for i, (a, b) in enumerate(pairs)
        )
        self.biases = nn.ParameterList(torch.zeros(b) for _, b in pairs)

    def forward(self, first: Tensor) -> Tensor:
        """Map products f32[B, sizes[0]], without bias, to outputs f32[B, sizes[-1]]."""
        x = (first + self.first_bias).relu()
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = affine(bias, x, weight).relu()
        return x


def mixed(gate: Tensor, experts: Sequence[Tensor]) -> Tensor:
    """Mixture Σ_i softmax(gate)_i e_i f32[B, H] of experts f32[B, H] by gates f32[B, n]."""
    return (gate.softmax(1).unsqueeze(2) * torch.stack(list(experts), 1)).sum(1)


class TrunkModel(CTRModel):
    """Trunk with the tower of its first task.

    Attributes:
        first: first layers that take x, and gates: sub-operators.
    """

    def __init__(self, config: MultiTask, part: Part, *layers: tuple[str, int, int]) -> None:
        """Builds the sub-operators and the tower.

        Args:
            config: of the model.
            part: of the rank.
            layers: name, units and number of the networks of each layer that takes x.
        """
        super().__init__()
        self._layers = [name for name, *_ in layers]
        self._units = [units for _, units, _ in layers]
        self.partial_size = sum(self._units)
        for name, units, blocks in layers:
            layer = FieldLinear(name, part, dim=config.dim, hidden=units, blocks=blocks)
            self.add_module(name, layer)
            self.local_axes |= layer.local_axes
        self.tower = Tower("tower.0", (config.hidden[-1], *config.tower), part.seed)

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Values f32[B, F_local, K] → products of all layers that take x, f32[B, S]."""
        return torch.cat([self.get_submodule(name)(values, dense, columns) for name in self._layers], 1)

    def split(self, aggregated: Tensor) -> list[Tensor]:
        """Products f32[B, units] of each layer that takes x, out of f32[B, S]."""
        return list(torch.split(aggregated, self._units, 1))

    @abstractmethod
    def inputs(self, aggregated: Tensor) -> list[Tensor]:
        """Inputs f32[B, H] of each task's tower."""

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, S] → logits f32[B] of the first task."""
        return self.logits(self.inputs(aggregated))

    def logits(self, inputs: Sequence[Tensor]) -> Tensor:
        """Logits f32[B] of the first task, of the inputs of all towers."""
        own: Tensor = self.tower(inputs[0])
        return own + self.bias


class TaskModel(CTRModel):
    """Tower and bias of a task; S = 0.

    Attributes:
        trunk: role of its trunk.
    """

    partial_size = 0

    def __init__(self, config: Task, part: Part) -> None:
        super().__init__()
        self.trunk, self._number = config.trunk, config.number
        sizes = (config.of.hidden[-1], *config.of.tower)
        self.tower = Tower(f"tower.{config.number}", sizes, part.seed)

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Nothing, f32[B, 0]."""
        return values.new_empty(len(values), 0)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Raises TypeError: a task is finished by the inputs of its trunk (`logits`)."""
        raise TypeError("a task has no logits of its own: give it the inputs of its trunk")

    def logits(self, inputs: Sequence[Tensor]) -> Tensor:
        """Logits f32[B] of the task, of the inputs of all towers (`TrunkModel.inputs`)."""
        own: Tensor = self.tower(inputs[self._number])
        return own + self.bias


class WholeTask(CTRModel):
    """Network of a task with its trunk, in a process that holds every field and asks for this task.

    Args:
        trunk, task: networks that have their weights.
    """

    def __init__(self, trunk: CTRModel, task: TaskModel) -> None:
        super().__init__()
        if not isinstance(trunk, TrunkModel):
            raise TypeError(f"{type(trunk).__name__} is no trunk")
        self.trunk_model, self.task = trunk, task
        self.partial_size = trunk.partial_size
        self.eval().requires_grad_(False)

    def partial(self, values: Tensor, dense: Tensor | None, columns: Columns | None = None) -> Tensor:
        """Partial results of the trunk."""
        return self.trunk_model.partial(values, dense, columns)

    def finish(self, aggregated: Tensor, gathered: Gathered | None = None) -> Tensor:
        """Aggregated f32[B, S] → logits f32[B] of the task."""
        return self.task.logits(self.trunk_model.inputs(aggregated))


def role_of_row(config: ModelConfig, role: str) -> str:
    """Role whose values in a table row a role's network reads: its own, or that of its trunk."""
    return config.trunk if isinstance(config, Task) else role
