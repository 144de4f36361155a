"""The state of a plan's running statistics: after the batches so far, for checkpoints and for versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from livectr.ingest.language.expr import Expr
from livectr.ingest.language.resources import Array, Statistic
from livectr.kernels.errors import MismatchError

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan


class Statistics:
    """The state of each of a plan's S statistic nodes at one moment; it never changes, so that another thread
    may extract with it while the next one is made.

    arrays: in the order of `plan.statistics`, float64 or int64, read-only. Without `arrays`: before the first
    batch.
    """

    def __init__(self, plan: FeaturePlan, arrays: Sequence[Array] | None = None) -> None:
        self.nodes = plan.statistics
        if arrays is None:
            arrays = [_statistic(node).initial() for node in self.nodes]
        self.arrays = tuple(arrays)
        for array in self.arrays:
            array.setflags(write=False)
        self._plan = plan

    def __len__(self) -> int:
        return len(self.nodes)

    def update(self, observed: Array) -> Statistics:
        """The state after one more batch, whose words were `observed` int64[S, B], in the global sequence."""
        arrays = []
        for node, state, words in zip(self.nodes, self.arrays, observed, strict=True):
            whole = node.inputs[0].dtype in ("int64", "int32", "bool")
            values = words if whole else words.view(np.float64)
            arrays.append(_statistic(node).update(state, values))
        return Statistics(self._plan, arrays)

    def state(self) -> dict[str, Array]:
        """Name → array, for a file or a version."""
        return dict(zip(map(name_of, self.nodes), self.arrays, strict=True))

    def load(self, state: Mapping[str, Array]) -> Statistics:
        """These nodes' state out of a `state()`, which may hold others' too.

        Raises MismatchError when it lacks one, or has another type: it is another pipeline's.
        """
        arrays = []
        for node, initial in zip(self.nodes, self.arrays, strict=True):
            found = state.get(name_of(node))
            if found is None or found.dtype != initial.dtype or found.ndim != 1:
                raise MismatchError(
                    f"the statistics of {node} were not kept; what was kept is another pipeline's"
                )
            arrays.append(np.array(found))
        return Statistics(self._plan, arrays)

    def of(self, plan: FeaturePlan) -> Statistics:
        """The part that another plan, of some of the same features, needs."""
        if plan is self._plan:
            return self
        held = self.state()
        return Statistics(plan, [held[name_of(node)] for node in plan.statistics])


def name_of(node: Expr) -> str:
    """The name of a node's state: operator and digest of the whole expression."""
    return f"{node.op}-{node.digest[:16]}"


def _statistic(node: Expr) -> Statistic:
    assert node.device is not None and node.device.statistic is not None, node
    return node.device.statistic
