"""Type casts."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import C_TYPES, Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError


def cast(x: Operand, dtype: str) -> Expr:
    """Cast a value, or each item of a list, to another type.

    number → number      rounded to the nearest float; towards zero to whole numbers, and to the type's limits
                         beyond them; NaN → 0
    number → bool        false for 0 and NaN, else true
    bool → number        0 or 1
    string → number      [+-]digits[.digits][e[+-]digits], with ASCII space around it; any other text → 0.
                         float64: the nearest number, for any count of digits (ties to even; infinite beyond
                         float64's range); float32: the float64, rounded again. Whole numbers: exact ("1e3"
                         and "5.0" are whole); 0 for other values and beyond the type
    whole number → string   in decimal; bool → string: "true" or "false"

    Args:
        x: number, bool or string.
        dtype: "int64", "int32", "float32", "float64", "bool" or "string".

    Example: `cast(json_field(log.extra, "price", "string"), "float32")`.
    """
    node = as_expr(x, "cast")
    source = dtypes.element(node.dtype)
    need("cast", node, (*dtypes.FIXED, "string"), "a number, bool or string")
    if dtype not in (*dtypes.FIXED, "string"):
        raise ConfigError(f"cast({node}): {dtype!r} is not one of {', '.join((*dtypes.FIXED, 'string'))}")
    if source == dtype:
        return node
    if (source, dtype) == ("string", "bool") or (dtype == "string" and source.startswith("float")):
        raise ConfigError(f"cast cannot make {dtype} of {node}, which is {node.dtype}: {_INSTEAD[dtype]}")
    casts: tuple[str, ...] = ()
    if source == "string":
        call = f"cast_text<{C_TYPES[dtype]}>({{0}})"
    elif dtype == "string":
        call = (
            "cast_bool_to_text({0}, {sink})" if source == "bool" else "cast_to_text((int64_t)({0}), {sink})"
        )
    else:
        wide = "float64" if source.startswith("float") else "int64"
        call, casts = f"Cast<{C_TYPES[dtype]}>::of({{0}})", (wide,)
    return mapped("cast", (node,), dtype=dtype, device=Device(call, casts=casts), params=(dtype,))


_INSTEAD = {
    "bool": 'compare it, as in x == "true"',
    "string": "make it a whole number first, for example with bucketize() or cast(…, 'int64')",
}
