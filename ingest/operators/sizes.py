"""Lengths of lists and strings."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr
from livectr.system.errors import ConfigError


def length(x: Operand) -> Expr:
    """Number of items of a list, or of characters (UTF-8 code points) of a string: int32.

    Example: `length(split(log.query, " "))`.
    """
    node = as_expr(x, "length")
    if dtypes.is_list(node.dtype):
        return Expr("length", (node,), dtype="int32", device=Device("{0}.size()", rowwise=True))
    if node.dtype != "string":
        raise ConfigError(f"length needs a list or a string, but {node} is {node.dtype}")
    return Expr("length", (node,), dtype="int32", device=Device("characters({0})"))
