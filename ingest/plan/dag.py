"""Feature plan: expressions of a pipeline as layers of a DAG (FeatureBox §4, Fig. 4).

Every call is a node; equal calls are one node. A node's layer is its depth from the roots, so nodes of a
layer do not depend on each other. `ingest.extract.extractor.Extractor` runs a plan.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr, is_vector, width_of
from livectr.ingest.language.hidden import hint, refuse
from livectr.ingest.language.resources import Array, Resource
from livectr.ingest.language.roots import roots_of
from livectr.ingest.operators.key import key
from livectr.ingest.operators.strings import is_grams
from livectr.ingest.plan.layout import Layout
from livectr.ingest.plan.recalled import Recalled, recalled
from livectr.system.errors import ConfigError


class FeaturePlan:
    """DAG of sparse fields (keys for embedding tables) and dense numbers, computed from the root columns.

    Args:
        sparse: name → expression of any type but floats; texts become keys as by `key()`.
        dense: name → expression of a scalar number or bool, or of a vector of fixed width.

    Raises:
        ConfigError: an expression has another type.
    """

    def __init__(self, sparse: Mapping[str, Expr], dense: Mapping[str, Expr] | None = None) -> None:
        self.sparse = {name: _sparse(name, expr) for name, expr in sparse.items()}
        self.dense = {name: _dense(name, expr) for name, expr in (dense or {}).items()}

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the sparse fields, in field order."""
        return tuple(self.sparse)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the dense numbers, in order; a vector `v` has v.0, v.1 and so on."""
        return tuple(
            part
            for name, node in self.dense.items()
            for part in ([f"{name}.{i}" for i in range(width_of(node))] if is_vector(node) else [name])
        )

    @property
    def outputs(self) -> tuple[Expr, ...]:
        """Nodes of the sparse fields, then of the dense features, in order."""
        return (*self.sparse.values(), *self.dense.values())

    @cached_property
    def roots(self) -> tuple[Expr, ...]:
        """Columns that the plan reads, once per name."""
        return roots_of(*self.outputs)

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """All nodes except constants, layer by layer, in order of first appearance within a layer."""
        order: dict[int, Expr] = {}
        stack = list(reversed(self.outputs))
        while stack:
            node = stack.pop()
            if id(node) not in order and node.op != "constant":
                order[id(node)] = node
                stack.extend(reversed(node.inputs))
        return tuple(sorted(order.values(), key=lambda node: node.layer))

    @cached_property
    def layers(self) -> tuple[tuple[Expr, ...], ...]:
        """Nodes by layer; layer 0 holds the roots."""
        depth = max((node.layer for node in self.nodes), default=-1)
        return tuple(tuple(node for node in self.nodes if node.layer == layer) for layer in range(depth + 1))

    @cached_property
    def statistics(self) -> tuple[Expr, ...]:
        """Nodes that use a running statistic of their first input."""
        return tuple(node for node in self.nodes if node.device and node.device.statistic)

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """Resources of the nodes, in node order."""
        return tuple(node.device.resource for node in self.nodes if node.device and node.device.resource)

    def resource_words(self, addresses: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
        """Members of the resources' structs, concatenated: int64[words].

        Args:
            addresses: for each resource, the addresses of its arrays.
        """
        pairs = zip(self.resources, addresses, strict=True)
        return np.array([word for resource, at in pairs for word in (*at, *resource.scalars)], np.int64)

    def initial_states(self) -> tuple[Array, ...]:
        """State of each statistic before the first batch, in the order of `statistics`."""
        statistics = [node.device.statistic for node in self.statistics if node.device]
        return tuple(statistic.initial() for statistic in statistics if statistic)

    @cached_property
    def fused(self) -> dict[int, Expr]:
        """Node id of a `key(ngrams(text, n))` → its n-grams, if nothing else reads them.

        The host computes both at once.
        """
        readers = Counter(id(source) for node in self.nodes for source in node.inputs)
        return {
            id(node): node.inputs[0]
            for node in self.nodes
            if node.op == "key" and is_grams(node.inputs[0]) and readers[id(node.inputs[0])] == 1
        }

    @cached_property
    def recalled(self) -> tuple[Recalled, ...]:
        """Parts that the host computes once for each different text."""
        observed = (node.inputs[0] for node in self.statistics)
        return recalled(self.nodes, (*self.outputs, *observed), self.fused)

    @cached_property
    def layout(self) -> Layout:
        """Memory layout of the results."""
        read = (*self.outputs, *(node.inputs[0] for node in self.statistics))
        return Layout(self.layers, read, self.fused)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the plan's computation: names, order, expressions, code of the user's operators."""
        outputs = [
            [(name, node.meaning) for name, node in outputs.items()] for outputs in (self.sparse, self.dense)
        ]
        return hashlib.sha256(repr(outputs).encode()).hexdigest()


def _sparse(name: str, expr: object) -> Expr:
    refuse(expr, f"sparse field {name!r}")
    if not isinstance(expr, Expr):
        raise ConfigError(f"sparse field {name!r} is {expr!r}, not an expression; {hint()}")
    kind = dtypes.element(expr.dtype)
    if kind in ("float32", "float64"):
        raise ConfigError(
            f"sparse field {name!r}: {expr} is {expr.dtype}; make it discrete, for example with bucketize()"
        )
    return key(expr) if kind in dtypes.TEXTS else expr


def _dense(name: str, expr: object) -> Expr:
    refuse(expr, f"dense feature {name!r}")
    if not isinstance(expr, Expr):
        raise ConfigError(f"dense feature {name!r} is {expr!r}, not an expression; {hint()}")
    if expr.dtype not in dtypes.FIXED and not is_vector(expr):
        raise ConfigError(
            f"dense feature {name!r}: {expr} is {expr.dtype}; "
            "a dense feature is one number per row, or a vector of fixed width"
        )
    return expr
