"""Feature crosses: a key for each combination of values."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, need
from livectr.ingest.operators.key import key
from livectr.system.errors import ConfigError


def cross(*inputs: Operand) -> Expr:
    """Feature cross: a 64-bit key for each combination of values.

    The type is int64, or list<int64> if an input is a list.

    The inputs' keys are mixed in order: cross(a, b) differs from cross(b, a). Lists give their product, with
    the last input varying fastest; an empty list gives no key. Mixed keys can collide, unlike integers' own
    keys: among n different combinations with a probability of about n² / 2⁶⁵ (n = 10⁸: 0.03 %).

    Args:
        inputs: 2 to 4 integers, bools, strings, or lists of them.

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
