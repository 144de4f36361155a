"""MMoE, multi-gate mixture of experts (Ma et al., KDD 2018, §4.2).

    y_k   = h_k(f^k(x))                       (eq. 6)
    f^k   = Σ_i g^k(x)_i f_i(x)               (eq. 7)
    g^k(x) = softmax(W_{gk} x)                (eq. 8)

f_1 … f_n are the experts, g^k the gate and h_k the tower of task k (`models.multi_task`).

Sub-operators: the first layers of the n experts, and the gates' logits W_{gk} x.  ⊕: n (H₁ + tasks) float32
per example.

Deviations: fields are sum-pooled; dense features x enter by s of `models.symlog`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from livectr.models.inputs import Part
from livectr.models.multi_task import Hidden, MultiTask, TrunkModel, mixed


@dataclass(frozen=True)
class MMoE(MultiTask):
    """Multi-gate mixture of experts (Ma et al., KDD 2018, eq. 6-8): y_k = h_k(Σ_i g^k(x)_i f_i(x)).

    Use it where targets are related, but not alike: each gate weighs the experts for its own. Do not use it
    with a single target that hardly differs from clicks: `SharedBottom` does the same for less.

    Args:
        dim: K, float32 values of a vector v.
        hidden: units of each expert's layers, H₁ first; at least one layer.
        tower: units of the hidden layers of each tower; (): a linear tower.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the networks' parameters.
        experts: n, number of experts.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import MMoE
        >>> config = MMoE(dim=8, experts=3, hidden=(32, 16), tower=(8,))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows v of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (99, torch.Size([4]))
    """

    experts: int = field(default=4, kw_only=True)

    def trunk(self, part: Part, tasks: int) -> TrunkModel:
        """See `MultiTask.trunk`."""
        return MMoEModel(self, part, tasks)


class MMoEModel(TrunkModel):
    """Trunk of `MMoE`; S = n (H₁ + tasks)."""

    def __init__(self, config: MMoE, part: Part, tasks: int) -> None:
        n = config.experts
        # A gate by task: a target that is added later leaves the others' as they are.
        gates = [(f"gate{task}", n, 1) for task in range(tasks)]
        super().__init__(config, part, ("first", n * config.hidden[0], n), *gates)
        self.experts = nn.ModuleList(Hidden(f"experts.{i}", config.hidden, part.seed) for i in range(n))

    def inputs(self, aggregated: Tensor) -> list[Tensor]:
        """See `TrunkModel.inputs`."""
        first, *gates = self.split(aggregated)
        parts = first.chunk(len(self.experts), 1)
        outputs = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        return [mixed(gate, outputs) for gate in gates]
