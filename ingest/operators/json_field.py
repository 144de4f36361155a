"""Fields of semi-structured columns."""

from __future__ import annotations

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import C_TYPES, Device, Expr, Operand, as_expr, mapped, need
from livectr.kernels.errors import ConfigError


def json_field(x: Operand, path: str, dtype: str) -> Expr:
    """One field of JSON text (RFC 8259), or of each text of a list; `dtype`: any scalar but binary.

    path   names of members, with dots between them: "device.screen.width". A segment that is a whole number
           also indexes an array, from 0: "slots.0.price". Names with dots in them cannot be reached

    A field that is absent, null or of another JSON type, and broken JSON anywhere in the text, give 0, "" or
    false. As in Python's json the last of equal keys counts; half a surrogate pair becomes U+FFFD. More than
    64 containers within each other count as broken. Numbers are read as by `cast`.

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
