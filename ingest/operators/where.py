"""Conditional choice."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError


def where(condition: Operand, a: Operand, b: Operand) -> Expr:
    """Choose a where the condition is true, else b; numbers are promoted to a common type.

    Args:
        condition: bool.
        a: number, bool or string.
        b: of a type that fits a.

    Example: `where(users.age > 0, users.age, 30)`.
    """
    test = as_expr(condition, "where")
    need("where", test, ("bool",), "a bool condition")
    left = as_expr(a, "where", b.dtype if isinstance(b, Expr) else "")
    right = as_expr(b, "where", left.dtype)
    kinds = [dtypes.element(node.dtype) for node in (left, right)]
    if kinds == ["string", "string"]:
        device = Device("{sink}.append({0} ? {1} : {2})")
        return mapped("where", (test, left, right), dtype="string", device=device)
    if not all(kind in dtypes.FIXED for kind in kinds):
        raise ConfigError(
            f"where needs two numbers or two strings, but {left} is {left.dtype} and {right} is {right.dtype}"
        )
    dtype = "bool" if kinds == ["bool", "bool"] else dtypes.promote(*kinds)
    device = Device("({0} ? {1} : {2})", casts=("", dtype, dtype))
    return mapped("where", (test, left, right), dtype=dtype, device=device)
