"""Roots of expressions: the columns and histories that they depend on."""

from __future__ import annotations

from collections.abc import Iterator

from livectr.ingest.language.counts import CountedRef
from livectr.ingest.language.expr import Expr


def roots_of(*exprs: Expr) -> tuple[Expr, ...]:
    """Root nodes that expressions depend on, once per name, in order of first appearance."""
    by_name: dict[str, Expr] = {}
    for node in _below(*exprs):
        if node.is_root:
            by_name.setdefault(node.name, node)
    return tuple(by_name.values())


def needs_statistics(*exprs: Expr) -> bool:
    """Return true when an expression depends on running statistics.

    Its values then depend on the training.
    """
    return any(node.device is not None and node.device.statistic is not None for node in _below(*exprs))


def needs_counts(*exprs: Expr) -> bool:
    """Return true when an expression depends on counters."""
    return any(isinstance(root.ref, CountedRef) for root in roots_of(*exprs))


def _below(*exprs: Expr) -> Iterator[Expr]:
    """Nodes of expressions, the expressions included, in order of first appearance."""
    seen: set[int] = set()
    stack = list(reversed(exprs))
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(reversed(node.inputs))
