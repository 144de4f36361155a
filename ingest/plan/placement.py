"""Placement of a plan's nodes on GPU and CPU under a budget of device memory (FeatureBox §4).

"We favor the execution of operators on GPUs unless an operator requires a significant memory footprint that
does not fit in the GPU memory": nodes go to the GPU in ascending order of their working set, as long as the
device's peak stays within the budget. The others go to CPU workers. Their results are copied to the device
(H2D) when their layer is done, while the GPU computes nodes that do not depend on them.

Nothing is copied back. Inputs of a CPU node are computed on the CPU too, from the batch in host memory; a
node that both sides need is computed on both. The order does not depend on the budget, so a larger budget
only moves nodes to the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from livectr.ingest.language.expr import Expr
from livectr.ingest.plan.memory import Memory, Sizes, memory_of, result_bytes, working_set
from livectr.system.byte_units import show_bytes
from livectr.system.errors import ConfigError

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan


@dataclass(frozen=True, eq=False)
class LayerPlacement:
    """Nodes of a layer by device, each in plan order.

    In layer 0 they are columns of the batch, stored on the device (`gpu`) or read in host memory (`cpu`).

    Args:
        gpu: nodes that the GPU computes.
        cpu: nodes that the CPU computes.
        copied: nodes of `cpu` whose results are copied to the device after the layer.
    """

    gpu: tuple[Expr, ...]
    cpu: tuple[Expr, ...]
    copied: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class DevicePlacement:
    """Placement of a plan's nodes on devices. All tuples are in plan order.

    Args:
        plan: the feature plan.
        rows: batch size for which memory is estimated.
        sizes: assumed sizes of strings and lists.
        budget_bytes: limit of device memory; None: no limit.
        cpu: nodes that the CPU computes for the device; their results are copied.
        host_nodes: nodes that the CPU computes or reads: `cpu` and all ancestors, columns of the batch
            included.
        device_nodes: nodes that the device holds: outputs and their ancestors, columns of the batch included.
            Nodes of `cpu` are inputs there, and ancestors that only they need are left out.
        too_big: nodes that the budget keeps off the GPU; CPU nodes use them, or their results are copied.
    """

    plan: FeaturePlan
    rows: int
    sizes: Sizes
    budget_bytes: int | None
    cpu: tuple[Expr, ...]
    host_nodes: tuple[Expr, ...]
    device_nodes: tuple[Expr, ...]
    too_big: tuple[Expr, ...]

    @cached_property
    def gpu(self) -> tuple[Expr, ...]:
        """Nodes that the device computes."""
        given = _ids(self.cpu)
        return tuple(node for node in self.device_nodes if not node.is_root and id(node) not in given)

    @cached_property
    def copied_bytes(self) -> int:
        """Estimated bytes of CPU results copied to the device per batch, without columns of the batch."""
        return sum(result_bytes(node, self.rows, self.sizes) for node in self.cpu)

    @cached_property
    def layers(self) -> tuple[LayerPlacement, ...]:
        """Placement of each layer."""
        host, device, copied = _ids(self.host_nodes), _ids(self.device_nodes), _ids(self.cpu)
        return tuple(
            LayerPlacement(
                tuple(node for node in layer if id(node) in device and id(node) not in copied),
                tuple(node for node in layer if id(node) in host),
                tuple(node for node in layer if id(node) in copied),
            )
            for layer in self.plan.layers
        )

    @cached_property
    def device_memory(self) -> Memory:
        """Estimated memory of the device; never more than the budget."""
        return memory_of(self.plan, self.rows, self.sizes, stored=self.device_nodes, computed=self.gpu)

    def device_of(self, node: Expr) -> str:
        """Device of a node: "GPU", "CPU", or "both"."""
        on_cpu = id(node) in self._host_ids
        return "both" if on_cpu and id(node) in self._gpu_ids else "CPU" if on_cpu else "GPU"

    @cached_property
    def _host_ids(self) -> frozenset[int]:
        return _ids(self.host_nodes)

    @cached_property
    def _gpu_ids(self) -> frozenset[int]:
        return _ids(self.device_nodes) - _ids(self.cpu)


def place(
    plan: FeaturePlan, *, budget_bytes: int | None, rows: int, sizes: Sizes | None = None
) -> DevicePlacement:
    """Place a plan for batches of `rows` rows; without a budget all nodes are on the GPU.

    Raises:
        ConfigError: the features of a batch alone exceed the budget.
    """
    sizes = sizes or Sizes()
    order = sorted(
        (node for node in plan.nodes if not node.is_root), key=lambda node: working_set(node, rows, sizes)
    )  # stable: equal working sets stay in plan order
    if budget_bytes is None:
        return _split(plan, rows, sizes, None, order)
    least = _split(plan, rows, sizes, budget_bytes, ()).device_memory.peak
    if least > budget_bytes:
        raise ConfigError(
            f"gpu_budget is {show_bytes(budget_bytes)}, but the features alone of a batch of {rows:,} rows "
            f"take {show_bytes(least)} ({least:,} bytes); raise it, or lower batch_size"
        )
    # The peak never falls when a node is added to the GPU, so bisection finds the longest prefix that fits.
    fits, fails = 0, len(order) + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if _split(plan, rows, sizes, budget_bytes, order[:middle]).device_memory.peak <= budget_bytes:
            fits = middle
        else:
            fails = middle
    return _split(plan, rows, sizes, budget_bytes, order[:fits])


def _split(
    plan: FeaturePlan, rows: int, sizes: Sizes, budget_bytes: int | None, on_gpu: Iterable[Expr]
) -> DevicePlacement:
    """Placement in which exactly the nodes `on_gpu` may be computed on the GPU."""
    allowed = _ids(on_gpu)
    too_big = tuple(node for node in plan.nodes if not node.is_root and id(node) not in allowed)
    device = _needed(plan.outputs, stop=_ids(too_big))
    cpu = tuple(node for node in too_big if id(node) in device)
    host = _needed(cpu)
    host_nodes = tuple(node for node in plan.nodes if id(node) in host)
    device_nodes = tuple(node for node in plan.nodes if id(node) in device)
    return DevicePlacement(plan, rows, sizes, budget_bytes, cpu, host_nodes, device_nodes, too_big)


def _needed(targets: Iterable[Expr], stop: frozenset[int] = frozenset()) -> frozenset[int]:
    """Ids of `targets` and their ancestors; ancestors of `stop` alone are left out."""
    seen: set[int] = set()
    stack = list(targets)
    while stack:
        node = stack.pop()
        if id(node) not in seen and node.op != "constant":
            seen.add(id(node))
            if id(node) not in stop:
                stack.extend(node.inputs)
    return frozenset(seen)


def _ids(nodes: Iterable[Expr]) -> frozenset[int]:
    return frozenset(map(id, nodes))
