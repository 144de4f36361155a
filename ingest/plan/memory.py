"""Memory estimate of a plan's nodes for a batch: FeatureBox §4 places operators by their footprint.

Fixed-width results and resources are exact; strings and lists are estimated from assumed sizes per row. A
result lives from its layer to the last layer that uses it, an output to the end; resources and statistics are
resident. Columns follow Arrow (kernels/runtime/columns.cuh): a string or list is offsets int32[n + 1] and its
values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Final

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr, RecentRef

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan

ITEM_BYTES: Final = {"int64": 8, "int32": 4, "float32": 4, "float64": 8, "bool": 1}
OFFSET_BYTES: Final = 4
MOST_ITEMS: Final = 65_536
"""Most values of a node in one row; a row with more cannot be extracted."""


@dataclass(frozen=True)
class Sizes:
    """Assumed sizes of values whose size depends on the data.

    Args:
        string_bytes: mean bytes of a string.
        list_items: mean items of a list. A history of n keys has at most n; crossed lists multiply their
            items.
    """

    string_bytes: int = 24
    list_items: int = 8


@dataclass(frozen=True)
class LayerMemory:
    """Bytes of one layer: `written` by it (layer 0: the batch's columns), `live` while it runs."""

    written: int
    live: int


@dataclass(frozen=True)
class Memory:
    """Bytes of one device: `resident` while the plan is loaded; `layers` once per batch."""

    layers: tuple[LayerMemory, ...]
    resident: int

    @property
    def peak(self) -> int:
        """Greatest number of bytes in use at a time."""
        return self.resident + max((layer.live for layer in self.layers), default=0)


def items_per_row(node: Expr, sizes: Sizes) -> int:
    """Assumed items of a list column in a row."""
    lists = [source for source in node.inputs if dtypes.is_list(source.dtype)]
    if node.is_root and isinstance(node.ref, RecentRef):
        return min(node.ref.n, sizes.list_items)
    if lists and (node.op == "cross" or (node.device is not None and not node.device.rowwise)):
        return min(MOST_ITEMS, prod(items_per_row(source, sizes) for source in lists))
    return sizes.list_items


def result_bytes(node: Expr, rows: int, sizes: Sizes) -> int:
    """Bytes of a node's column of `rows` rows; a bool column of the batch is packed into bits."""
    kind, items, total = dtypes.element(node.dtype), rows, 0
    if dtypes.is_list(node.dtype):
        items, total = rows * items_per_row(node, sizes), OFFSET_BYTES * (rows + 1)
    if kind not in ITEM_BYTES:
        return total + OFFSET_BYTES * (items + 1) + sizes.string_bytes * items
    if kind == "bool" and node.is_root:
        return total + (items + 7) // 8
    return total + ITEM_BYTES[kind] * items


def resident_bytes(node: Expr) -> int:
    """Bytes that a node keeps between batches: its resource and its statistic's state."""
    if node.device is None:
        return 0
    resource, statistic = node.device.resource, node.device.statistic
    return (resource.nbytes if resource else 0) + (statistic.initial().nbytes if statistic else 0)


def working_set(node: Expr, rows: int, sizes: Sizes) -> int:
    """Bytes that a node's call touches: resident bytes, its result, and the columns it reads."""
    read = {id(source): source for source in node.inputs if source.op != "constant"}
    columns = [node, *read.values()]
    return resident_bytes(node) + sum(result_bytes(column, rows, sizes) for column in columns)


def memory_of(
    plan: FeaturePlan,
    rows: int,
    sizes: Sizes,
    *,
    stored: Iterable[Expr] | None = None,
    computed: Iterable[Expr] | None = None,
) -> Memory:
    """Memory of a device that holds the columns `stored` and computes `computed` among them.

    By default it holds and computes the whole plan.
    """
    stored = plan.nodes if stored is None else tuple(stored)
    computed = plan.nodes if computed is None else tuple(computed)
    depth = len(plan.layers)
    last = {id(node): node.layer for node in stored}
    last |= {id(node): depth - 1 for node in plan.outputs if id(node) in last}
    for node in computed:
        for source in node.inputs:
            if source.op != "constant":
                last[id(source)] = max(last[id(source)], node.layer)
    written, change = [0] * depth, [0] * (depth + 1)
    for node in stored:
        size = result_bytes(node, rows, sizes)
        written[node.layer] += size
        change[node.layer] += size
        change[last[id(node)] + 1] -= size
    layers = tuple(map(LayerMemory, written, accumulate(change)))
    return Memory(layers, sum(map(resident_bytes, computed)))
