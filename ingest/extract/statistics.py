"""State of a plan's running statistics, for checkpoints and versions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from livectr.ingest.language.expr import Expr
from livectr.ingest.language.resources import Array, Statistic
from livectr.system.errors import MismatchError

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan


class Statistics:
    """Immutable state of a plan's S running statistics at one moment.

    Another thread may extract with it while `update` creates the next state.

    Args:
        plan: whose statistic nodes they are.
        arrays: states in the order of `plan.statistics`, float64 or int64, read-only; None: before the first
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
        """State after one more batch.

        Args:
            observed: int64[S, B], words that the statistics observe, in the global sequence.
        """
        arrays = []
        for node, state, words in zip(self.nodes, self.arrays, observed, strict=True):
            integral = node.inputs[0].dtype in ("int64", "int32", "bool")
            values = words if integral else words.view(np.float64)
            arrays.append(_statistic(node).update(state, values))
        return Statistics(self._plan, arrays)

    @property
    def steady(self) -> int:
        """Number of examples that may be observed, in batches of any size, until a feature changes."""
        pairs = zip(self.nodes, self.arrays, strict=True)
        return min((_statistic(node).steady(array) for node, array in pairs), default=sys.maxsize)

    def state(self) -> dict[str, Array]:
        """Name → array, for a file or a version."""
        return dict(zip(map(name_of, self.nodes), self.arrays, strict=True))

    def load(self, state: Mapping[str, Array]) -> Statistics:
        """Load this plan's states from a `state()`, which may hold more.

        Raises:
            MismatchError: a state is missing or has another type, because it belongs to another pipeline.
        """
        arrays = []
        for node, initial in zip(self.nodes, self.arrays, strict=True):
            saved = state.get(name_of(node))
            if saved is None or saved.dtype != initial.dtype or saved.ndim != 1:
                raise MismatchError(
                    f"the statistics of {node} were not kept; what was kept is another pipeline's"
                )
            arrays.append(np.array(saved))
        return Statistics(self._plan, arrays)

    def of(self, plan: FeaturePlan) -> Statistics:
        """Select the states of another plan that has some of the same features."""
        if plan is self._plan:
            return self
        state = self.state()
        return Statistics(plan, [state[name_of(node)] for node in plan.statistics])


def name_of(node: Expr) -> str:
    """Name of a node's state: operator and meaning of the whole expression."""
    return f"{node.op}-{node.meaning[:16]}"


def _statistic(node: Expr) -> Statistic:
    assert node.device is not None and node.device.statistic is not None, node
    return node.device.statistic
