"""Crosses: one key per combination of values."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Device, Expr, Operand, as_expr, need
from livectr.ingest.operators.key import key
from livectr.kernels.errors import ConfigError


def cross(*inputs: Operand) -> Expr:
    """A 64-bit key for each combination of the values of 2 to 4 inputs: int64, or list<int64> if an input is
    a list.

    The inputs' keys are mixed in order: cross(a, b) differs from cross(b, a). Lists give their product, the
    last input running fastest; an empty list gives no key. Unlike integers' own keys, mixed keys can collide:
    among n different combinations the chance is about n² / 2⁶⁵ (n = 10⁸: 0.03 %).

    Example: `cross(bucketize(users.age, [18, 25, 35]), ads.category)`.
    """
    if not 2 <= len(inputs) <= 4:
        raise ConfigError(f"cross takes 2 to 4 inputs, not {len(inputs)}")
    nodes = [as_expr(value, "cross") for value in inputs]
    for node in nodes:
        need(
            "cross",
            node,
            ("int64", "int32", "bool", *dtypes.TEXTS),
            "integers, bools or strings (bucketize floats)",
        )
    keys = [key(node) for node in nodes]
    slots = ", ".join(f"{{{i}}}" for i in range(len(keys)))
    if any(dtypes.is_list(node.dtype) for node in keys):
        return Expr(
            "cross", keys, dtype="list<int64>", device=Device(f"cross({{sink}}, {slots})", rowwise=True)
        )
    return Expr("cross", keys, dtype="int64", device=Device(f"cross_keys({slots})", rowwise=True))
