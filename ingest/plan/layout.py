"""Memory layout of a plan's results: a slot for each node's column, a pool for the bytes it points to.

A column lives until the last layer that reads it has run; outputs live to the end. Then its slot is free for
nodes of later layers. Bytes in a pool live as long as anything may point to them: a substring is not copied,
so strings keep their inputs' bytes alive. All results that die at the same layer share a pool, which is freed
by resetting its head (FeatureBox §5: the pool is reset after the layer).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr

_ITEM_BYTES = {"int64": 8, "int32": 4, "float32": 4, "float64": 8, "bool": 1, "string": 16, "binary": 16}


def column_bytes(dtype: str) -> int:
    """Bytes per row of a column of results; strings and lists are a pointer and a size."""
    return 16 if dtypes.is_list(dtype) else _ITEM_BYTES[dtype]


def is_pooled(node: Expr) -> bool:
    """Return true if a node's results may take memory of a pool."""
    return not node.is_root and node.dtype not in dtypes.FIXED


class Layout:
    """Slots and pools of a plan's results.

    Args:
        layers: the plan's nodes, layer by layer; layer 0 holds the roots.
        outputs: nodes whose results are needed after the last layer.
        fused: id of a node → node that the host computes with it, whose inputs it reads instead.
    """

    def __init__(
        self, layers: Sequence[Sequence[Expr]], outputs: Collection[Expr], fused: Mapping[int, Expr]
    ) -> None:
        self._layers = layers
        self._nodes = tuple(node for layer in layers for node in layer)
        self._last = _last_layers(self._nodes, outputs, len(layers))
        for node in self._nodes:
            for source in fused[id(node)].inputs if id(node) in fused else ():
                if id(source) in self._last:
                    self._last[id(source)] = max(self._last[id(source)], node.layer)

    @cached_property
    def slots(self) -> dict[int, int]:
        """Node id → start of its column in bytes per row, a multiple of its width."""
        return self._assigned[0]

    @property
    def bytes_per_row(self) -> int:
        """Bytes per row of all slots together."""
        return self._assigned[1]

    @cached_property
    def pools(self) -> dict[int, int]:
        """Node id → number of its pool; pool 0 lives longest."""
        dies = {id(node): self._last[id(node)] for node in self._nodes}
        for node in reversed(self._nodes):
            if is_pooled(node) and dtypes.element(node.dtype) in dtypes.TEXTS:
                for source in node.inputs:
                    if id(source) in dies and dtypes.element(source.dtype) in dtypes.TEXTS:
                        dies[id(source)] = max(dies[id(source)], dies[id(node)])
        pooled = [node for node in self._nodes if is_pooled(node)]
        numbers = {layer: i for i, layer in enumerate(sorted({dies[id(n)] for n in pooled}, reverse=True))}
        self._deaths = tuple(numbers)
        return {id(node): numbers[dies[id(node)]] for node in pooled}

    @property
    def has_output_pool(self) -> bool:
        """True when pool 0 holds results that live to the end."""
        return bool(self.pools) and self._deaths[0] == len(self._layers)

    @cached_property
    def regions(self) -> tuple[int, ...]:
        """Pool → number of its memory region; pools that never live at the same time share a region."""
        pools = self.pools
        born = [min(n.layer for n in self._nodes if pools.get(id(n)) == i) for i in range(len(self._deaths))]
        free: list[int] = []  # region → last layer that uses it
        region_of: dict[int, int] = {}
        for pool in sorted(range(len(born)), key=lambda i: (born[i], i)):
            region = next((r for r, dies in enumerate(free) if dies < born[pool]), len(free))
            free[region : region + 1] = [self._deaths[pool]]
            region_of[pool] = region
        return tuple(region_of[pool] for pool in range(len(born)))

    @cached_property
    def _assigned(self) -> tuple[dict[int, int], int]:
        slots: dict[int, int] = {}
        free: dict[int, list[int]] = {}  # width → slots
        alive: list[Expr] = []
        top = 0
        for layer in self._layers[1:]:
            level = layer[0].layer
            for node in [n for n in alive if self._last[id(n)] < level]:
                free.setdefault(column_bytes(node.dtype), []).append(slots[id(node)])
            alive = [n for n in alive if self._last[id(n)] >= level]
            computed = [node for node in layer if not node.is_root]
            for node in sorted(computed, key=lambda node: -column_bytes(node.dtype)):
                width = column_bytes(node.dtype)
                if free.get(width):
                    slots[id(node)] = free[width].pop()
                else:
                    top = -(-top // width) * width
                    slots[id(node)] = top
                    top += width
                alive.append(node)
        return slots, -(-top // 16) * 16


def _last_layers(nodes: Sequence[Expr], outputs: Collection[Expr], layers: int) -> dict[int, int]:
    """Node id → the last layer that reads its column; for outputs the number of layers."""
    last = {id(node): node.layer for node in nodes}
    for node in nodes:
        for source in node.inputs:
            if id(source) in last:
                last[id(source)] = max(last[id(source)], node.layer)
    for node in outputs:
        last[id(node)] = layers
    return last
