"""Keys: 64-bit integers that identify values in embedding tables."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, mapped, need


def key(x: Operand) -> Expr:
    """64-bit key of a value, or of each item of a list: int64.

    An integer is its own key, so integers never collide (FeatureBox §2.1 rules hashing tricks out). A bool is
    0 or 1; a string is the XXH64 of its UTF-8 bytes. Sparse fields become keys automatically: call this only
    to compute on keys.

    Example: `key(log.user_id)`.
    """
    node = as_expr(x, "key")
    need(
        "key",
        node,
        ("int64", "int32", "bool", *dtypes.TEXTS),
        "an integer, bool or string (bucketize floats)",
    )
    if dtypes.element(node.dtype) == "int64":
        return node
    return mapped("key", (node,), dtype="int64", device=Device("key({0})"))
