"""The feature plan: expressions of a pipeline as layers of a DAG (FeatureBox §4, Fig. 4).

Every call is a node; equal calls are one node; a node's layer is its depth from the roots, so the nodes of a
layer have no dependencies among them. `compile` generates the device code of the whole plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ingest import dtypes
from ingest.expr import Expr
from ingest.operators.key import key
from ingest.streams import roots_of
from kernels.errors import ConfigError

if TYPE_CHECKING:
    from ingest.extractor import Extractor


class FeaturePlan:
    """Sparse fields (keys for embedding tables) and dense numbers, computed from the root columns.

    A sparse expression of any type but floats becomes keys as by `key()`; a dense one must be a scalar number
    or bool. ConfigError when an expression cannot be what it is asked to be.
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
        return tuple(self.dense)

    @property
    def outputs(self) -> tuple[Expr, ...]:
        return (*self.sparse.values(), *self.dense.values())

    @cached_property
    def roots(self) -> tuple[Expr, ...]:
        """The columns that are needed, once per name."""
        return roots_of(*self.outputs)

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """Every node but constants, layer by layer, in order of first appearance within a layer."""
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
    def fingerprint(self) -> str:
        """sha256 of what the plan computes: names, order, expressions, operators' code."""
        outputs = [
            [(name, node.digest) for name, node in outputs.items()] for outputs in (self.sparse, self.dense)
        ]
        return hashlib.sha256(repr(outputs).encode()).hexdigest()

    def compile(self) -> Extractor:
        """Generates and compiles the host extractor (cached on disk). ConfigError when a user's operator
        does not compile."""
        from ingest.extractor import Extractor

        return Extractor(self)

    def describe(self) -> str:
        """A plain table of the layers, a line per node."""
        users: dict[int, list[str]] = {}
        for kind, outputs in (("field", self.sparse), ("dense", self.dense)):
            for name, node in outputs.items():
                users.setdefault(id(node), []).append(f"{kind} {name}")
        rows = [("layer", "node", "type", "gives")]
        rows += [
            (str(node.layer), str(node), node.dtype, ", ".join(users.get(id(node), [])))
            for node in self.nodes
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]
            ).rstrip()
            for row in rows
        )

    def to_dot(self) -> str:
        """The DAG in Graphviz' language, a rank per layer."""
        number = {id(node): index for index, node in enumerate(self.nodes)}
        lines = ["digraph plan {", "  rankdir=LR;", "  node [shape=box, fontname=monospace];"]
        for layer in self.layers:
            lines.append("  { rank=same; " + " ".join(f"n{number[id(node)]};" for node in layer) + " }")
        for node in self.nodes:
            label = (
                node.name
                if node.is_root
                else ", ".join([node.op, *(str(i) for i in node.inputs if i.op == "constant")])
            )
            lines.append(f"  n{number[id(node)]} [label={_quote(f'{label} : {node.dtype}')}];")
            lines += [f"  n{number[id(i)]} -> n{number[id(node)]};" for i in node.inputs if id(i) in number]
        for kind, outputs in (("field", self.sparse), ("dense", self.dense)):
            for name, node in outputs.items():
                lines.append(f"  {_quote(f'{kind} {name}')} [shape=ellipse];")
                if id(node) in number:
                    lines.append(f"  n{number[id(node)]} -> {_quote(f'{kind} {name}')};")
        return "\n".join([*lines, "}"])


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _sparse(name: str, expr: object) -> Expr:
    if not isinstance(expr, Expr):
        raise ConfigError(f"sparse field {name!r} is {expr!r}, not an expression")
    kind = dtypes.element(expr.dtype)
    if kind in ("float32", "float64"):
        raise ConfigError(
            f"sparse field {name!r}: {expr} is {expr.dtype}; make it discrete, for example with bucketize()"
        )
    return key(expr) if kind in dtypes.TEXTS else expr


def _dense(name: str, expr: object) -> Expr:
    if not isinstance(expr, Expr):
        raise ConfigError(f"dense feature {name!r} is {expr!r}, not an expression")
    if expr.dtype not in dtypes.FIXED:
        raise ConfigError(
            f"dense feature {name!r}: {expr} is {expr.dtype}; a dense feature is one number per row"
        )
    return expr
