"""PLE, progressive layered extraction (Tang et al., RecSys 2020, §4).

Each task k has m experts of its own, and all tasks share s experts. At level j, a gate of each task mixes its
own and the shared experts, and a gate of the shared part mixes all:

    g^{k,0}(x) = x
    g^{k,j}(x) = w^{k,j}(g^{k,j-1}(x)) S^{k,j}(x)          (eq. 5)
    w^{k,j}(u) = softmax(W^{k,j} u)                        (eq. 2)
    S^{k,j}    = [own experts of k on g^{k,j-1}, shared experts on g^{s,j-1}]     (eq. 3)
    g^{s,j}    = softmax(W^{s,j} g^{s,j-1}) [experts of all tasks, shared experts]
    y_k        = t_k(g^{k,N}(x))                           (eq. 7)

The last level N has no shared gate. With one level this is customized gate control (CGC, §3). t_k is the
tower of task k (`models.multi_task`).

Sub-operators: the first layers of level 1's experts, and the logits of its gates, which take x.  ⊕: with
n = tasks · m + s experts, n H₁ + tasks (m + s) float32 per example, and n more with several levels.

Deviations: fields are sum-pooled; dense features x enter by s of `models.symlog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from livectr.models.inputs import Part
from livectr.models.layers import generator, kaiming, matrix
from livectr.models.multi_task import Hidden, MultiTask, TrunkModel, mixed
from livectr.models.products import product


@dataclass(frozen=True)
class PLE(MultiTask):
    """Progressive layered extraction (Tang et al., RecSys 2020): own and shared experts, level upon level.

    Use it where targets contradict each other, such as clicks and dwell: experts of its own let none spoil
    another's. Do not use it for few examples: it has the most parameters.

    Args:
        dim: K, float32 values of a vector v.
        hidden: units of each expert's layers, H₁ first; at least one layer.
        tower: units of the hidden layers of each tower; (): a linear tower.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the networks' parameters.
        experts: m, number of experts of each task, at each level.
        shared_experts: s, number of experts that all tasks share, at each level.
        levels: N, number of extraction levels; 1: CGC.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import PLE
        >>> config = PLE(dim=8, experts=1, shared_experts=2, levels=1, hidden=(32, 16), tower=(8,))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows v of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (99, torch.Size([4]))
    """

    experts: int = field(default=2, kw_only=True)
    shared_experts: int = field(default=2, kw_only=True)
    levels: int = field(default=2, kw_only=True)

    def trunk(self, part: Part, tasks: int) -> TrunkModel:
        """See `MultiTask.trunk`."""
        return PLEModel(self, part, tasks)


class Experts(nn.Module):
    """Experts of a level, those of task 1, task 2 … and the shared ones, which gates mix."""

    def __init__(self, name: str, config: PLE, tasks: int, seed: int) -> None:
        super().__init__()
        own, shared = config.experts, config.shared_experts
        n = tasks * own + shared
        self.each = nn.ModuleList(Hidden(f"{name}.{i}", config.hidden, seed) for i in range(n))
        self.of_task = [[*range(k * own, (k + 1) * own), *range(tasks * own, n)] for k in range(tasks)]

    def forward(self, firsts: Sequence[Tensor], gates: Sequence[Tensor]) -> list[Tensor]:
        """Mix the outputs of the experts.

        Args:
            firsts: first products f32[B, H₁] of each expert.
            gates: logits of each task's gate f32[B, m + s]; then, if there is one, of the shared part's
                f32[B, n].

        Returns:
            Mixtures f32[B, H] of each gate.
        """
        outputs = [expert(first) for expert, first in zip(self.each, firsts, strict=True)]
        mixtures = [
            mixed(gate, [outputs[i] for i in chosen])
            for gate, chosen in zip(gates, self.of_task, strict=False)
        ]
        return mixtures + [mixed(gate, outputs) for gate in gates[len(self.of_task) :]]


class Level(nn.Module):
    """Level after the first, whose inputs are the mixtures of the level before."""

    def __init__(self, name: str, config: PLE, tasks: int, seed: int, *, last: bool) -> None:
        super().__init__()
        width, own = config.hidden[-1], config.experts
        self.experts = Experts(f"{name}.experts", config, tasks, seed)
        n = len(self.experts.each)
        #: input of each expert: the mixture of its task, or of the shared part
        self._input = [i // own for i in range(tasks * own)] + [tasks] * config.shared_experts
        self.first = nn.ParameterList(
            kaiming(width, config.hidden[0], generator(seed, f"{name}.first.{i}")) for i in range(n)
        )
        sizes = [own + config.shared_experts] * tasks + ([] if last else [n])
        self.gates = nn.ParameterList(
            matrix(seed, f"{name}.gates.{i}", width, size) for i, size in enumerate(sizes)
        )

    def forward(self, below: Sequence[Tensor]) -> list[Tensor]:
        """Mixtures f32[B, H] of each task, and but for the last level of the shared part.

        Args:
            below: those of the level before.
        """
        firsts = [product(below[i], weight) for i, weight in zip(self._input, self.first, strict=True)]
        gates = [product(below[i], weight) for i, weight in enumerate(self.gates)]
        found: list[Tensor] = self.experts(firsts, gates)
        return found


class PLEModel(TrunkModel):
    """Trunk of `PLE`."""

    def __init__(self, config: PLE, part: Part, tasks: int) -> None:
        n = tasks * config.experts + config.shared_experts
        of_task = config.experts + config.shared_experts
        gates = [of_task] * tasks + ([n] if config.levels > 1 else [])
        layers = ("first", n * config.hidden[0], n), ("gates", sum(gates), len(gates))
        super().__init__(config, part, *layers)
        self._tasks, self._gates = tasks, gates
        self.experts = Experts("experts", config, tasks, part.seed)
        self.levels = nn.ModuleList(
            Level(f"levels.{j}", config, tasks, part.seed, last=j == config.levels - 2)
            for j in range(config.levels - 1)
        )

    def inputs(self, aggregated: Tensor) -> list[Tensor]:
        """See `TrunkModel.inputs`."""
        first, gates = self.split(aggregated)
        firsts = first.chunk(len(self.experts.each), 1)
        mixtures: list[Tensor] = self.experts(firsts, torch.split(gates, self._gates, 1))
        for level in self.levels:
            mixtures = level(mixtures)
        return mixtures[: self._tasks]
