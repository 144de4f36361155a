"""Fields of semi-structured columns."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import C_TYPES, Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError


def json_field(x: Operand, path: str, dtype: str) -> Expr:
    """Extract a field from JSON text (RFC 8259), or from each text of a list.

    A field that is absent, null or of another JSON type gives 0, "" or false, and so does a syntax error
    anywhere in the text. As in Python's json the last of equal names counts; half a surrogate pair becomes
    U+FFFD. More than 64 nested containers count as an error. Numbers are read as by `cast`.

    Args:
        x: JSON text (string).
        path: names of members, separated by dots: "device.screen.width". A whole number also indexes an
            array, from 0: "slots.0.price". Names that contain dots cannot be addressed.
        dtype: any scalar but binary.

    Example: `json_field(log.extra, "device.os", "string")`.
    """
    node = as_expr(x, "json_field")
    need("json_field", node, ("string",), "JSON text (string)")
    if not isinstance(path, str) or not path or "" in path.split("."):
        raise ConfigError(
            f"json_field({node}): the path must be names with single dots between them, as in 'a.b.0', "
            f"not {path!r}"
        )
    allowed = (*dtypes.FIXED, "string")
    if dtype not in allowed:
        raise ConfigError(f"json_field({node}): the type {dtype!r} is not one of {', '.join(allowed)}")
    call = {"string": "json_text({0}, {1}, {sink})", "bool": "json_bool({0}, {1})"}
    device = Device(call.get(dtype) or f"json_number<{C_TYPES[dtype]}>({{0}}, {{1}})")
    return mapped("json_field", (node, as_expr(path, "json_field")), dtype=dtype, device=device)
