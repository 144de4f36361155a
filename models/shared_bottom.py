"""Shared bottom, the plain multi-task network (Caruana 1997; Ma et al., KDD 2018, §3.1, eq. 1).

    y_k = h_k(f(x))

f is the bottom that all tasks share, h_k the tower of task k (`models.multi_task`).

Sub-operator: the bottom's first layer (DES eq. 8).  ⊕: H₁ float32 per example.

Deviations: fields are sum-pooled; dense features x enter by s of `models.symlog`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from livectr.models.inputs import Part
from livectr.models.multi_task import Hidden, MultiTask, TrunkModel


@dataclass(frozen=True)
class SharedBottom(MultiTask):
    """Shared bottom (Caruana 1997; Ma et al., KDD 2018, eq. 1): y_k = h_k(f(x)).

    Use it as the first multi-task model: rare targets learn by what clicks teach tables and bottom. Do not
    use it where targets contradict each other: `MMoE` and `PLE` let each take its own experts.

    Args:
        dim: K, float32 values of a vector v.
        hidden: units of the bottom's layers, H₁ first; at least one layer.
        tower: units of the hidden layers of each tower; (): a linear tower.
        optimiser: table optimiser of the vectors v.
        init_scale: vectors start uniform in (-init_scale, init_scale).
        dense_lr: Adam's learning rate of the networks' parameters.
        schedule: learning rates over the number of batches.

    Example:
        >>> import torch
        >>> from livectr.models import SharedBottom
        >>> config = SharedBottom(dim=8, hidden=(32, 16), tower=(8,))
        >>> fields = ("user", "ad")
        >>> model = config.build(fields, fields, ("price",), dense_local=True, seed=1)
        >>> values = torch.zeros(4, len(fields), config.width)  # rows v of 4 examples
        >>> model.partial_size, model(values, torch.zeros(4, 1)).shape
        (32, torch.Size([4]))
    """

    def trunk(self, part: Part, tasks: int) -> TrunkModel:
        """See `MultiTask.trunk`."""
        return SharedBottomModel(self, part, tasks)


class SharedBottomModel(TrunkModel):
    """Trunk of `SharedBottom`; S = H₁."""

    def __init__(self, config: SharedBottom, part: Part, tasks: int) -> None:
        super().__init__(config, part, ("first", config.hidden[0], 1))
        self._tasks = tasks
        self.bottom = Hidden("bottom", config.hidden, part.seed)

    def inputs(self, aggregated: Tensor) -> list[Tensor]:
        """See `TrunkModel.inputs`: the bottom's output, for all towers."""
        return [self.bottom(aggregated)] * self._tasks
