"""Substrings, search and concatenation of strings (UTF-8)."""

from __future__ import annotations

from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError


def trim(x: Operand) -> Expr:
    """Remove ASCII white space at both ends of a string, or of each string of a list.

    White space is space, tab, line feed, vertical tab, form feed and carriage return.

    Example: `trim(log.query)`.
    """
    node = as_expr(x, "trim")
    need("trim", node, ("string",), "a string")
    return mapped("trim", (node,), dtype="string", device=Device("{sink}.append(trimmed({0}))"))


def substring(x: Operand, start: int, length: int | None = None) -> Expr:
    """Substring of a string, or of each string of a list, in characters (UTF-8 code points).

    It equals Python's x[start : start + length]. A negative start counts from the end, so that `substring(x,
    -3, 2)` is the third and second last character.

    Args:
        x: string.
        start: position of the first character.
        length: greatest number of characters; None: up to the end.

    Example: `substring(log.query, 0, 20)`.
    """
    node = as_expr(x, "substring")
    need("substring", node, ("string",), "a string")
    for value, name in ((start, "start"), (length, "length")):
        is_int = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31
        if not (is_int or (value is None and name == "length")):
            raise ConfigError(f"substring({node}): {name} must be a whole number of 32 bits, not {value!r}")
    if length is not None and length < 0:
        raise ConfigError(f"substring({node}): length must not be negative, but is {length}")
    size = 2**31 if length is None else length
    arguments = (("int64", start), ("int64", size))
    device = Device("{sink}.append(substring_of({0}, {a[0]}, {a[1]}))", arguments=arguments)
    return mapped("substring", (node,), dtype="string", device=device, params=(start, length))


def contains(x: Operand, text: Operand) -> Expr:
    """Test if a string, or each string of a list, contains `text`, byte for byte: bool.

    Every string contains the empty text.

    Example: `contains(lower(ads.title), "sale")`.
    """
    return _search("contains", x, text)


def starts_with(x: Operand, text: Operand) -> Expr:
    """Test if a string, or each string of a list, starts with `text`: bool.

    Example: `starts_with(log.url, "https://")`.
    """
    return _search("starts_with", x, text)


def _search(op: str, x: Operand, text: Operand) -> Expr:
    nodes = (as_expr(x, op), as_expr(text, op))
    for node in nodes:
        need(op, node, ("string",), "strings")
    return mapped(op, nodes, dtype="bool", device=Device(f"{op}({{0}}, {{1}})"))


def concat(*inputs: Operand) -> Expr:
    """Concatenate 2 to 8 strings: string. One input may be a list; then each of its strings is concatenated.

    Example: `concat(users.city, "|", log.query)`.
    """
    if not 2 <= len(inputs) <= 8:
        raise ConfigError(f"concat takes 2 to 8 strings, not {len(inputs)}")
    nodes = [as_expr(value, "concat") for value in inputs]
    for node in nodes:
        need("concat", node, ("string",), "strings (cast makes them of whole numbers)")
    slots = ", ".join(f"{{{i}}}" for i in range(len(nodes)))
    return mapped("concat", nodes, dtype="string", device=Device(f"concat({{sink}}, {slots})"))
