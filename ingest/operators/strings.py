"""Lower case, splitting and n-grams of strings (UTF-8)."""

from __future__ import annotations

from typing import Literal

from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError


def lower(x: Operand) -> Expr:
    """Convert a string, or each string of a list, to lower case.

    Each character is mapped by itself (Unicode's simple case mapping) in ASCII, Latin-1, Latin Extended-A,
    modern Greek, Cyrillic and Armenian, if the lower case has as many bytes; other bytes stay.

    Example: `lower(log.query)`.
    """
    node = as_expr(x, "lower")
    need("lower", node, ("string",), "a string")
    return mapped("lower", (node,), dtype="string", device=Device("lower({0}, {sink})"))


def split(x: Operand, separator: str) -> Expr:
    """Split a string at separators: list<string>, without empty pieces.

    Example: `split(lower(log.query), " ")`.
    """
    node = as_expr(x, "split")
    if node.dtype != "string":
        raise ConfigError(f"split needs a string, but {node} is {node.dtype}")
    if not isinstance(separator, str) or not separator:
        raise ConfigError(
            f"split({node}): the separator must be a string that is not empty, not {separator!r}"
        )
    inputs = (node, as_expr(separator, "split"))
    return Expr("split", inputs, dtype="list<string>", device=Device("split({0}, {1}, {sink})", rowwise=True))


def ngrams(x: Operand, n: int, of: Literal["characters", "bytes"] = "characters") -> Expr:
    """N-grams, runs of `n` neighbours: list<string>, empty for fewer than n.

    A list of strings gives n neighbouring strings, joined by a space. A string gives n neighbouring
    characters (UTF-8 code points), or bytes.

    Args:
        x: string, binary or list<string>.
        n: 1 to 64.
        of: "characters" or "bytes", for a string.

    Example: `ngrams(split(log.query, " "), 2)`, `ngrams(ads.title, 3)`.
    """
    node = as_expr(x, "ngrams")
    params: tuple[object, ...] = (n,)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= 64:
        raise ConfigError(f"ngrams({node}): n must be between 1 and 64, not {n!r}")
    if node.dtype == "list<string>":
        call = "word_ngrams({0}, {a[0]}, {sink})"
    elif (node.dtype, of) in (("string", "characters"), ("string", "bytes"), ("binary", "bytes")):
        call, params = f"{of[:-1]}_ngrams({{0}}, {{a[0]}}, {{sink}})", (n, of)
    else:
        raise ConfigError(
            f"ngrams needs a string (of characters or bytes), binary (of bytes) or list<string>, "
            f"but {node} is {node.dtype} and of is {of!r}"
        )
    device = Device(call, rowwise=True, arguments=(("int32", n),))
    return Expr("ngrams", (node,), dtype="list<string>", device=device, params=params)


def is_grams(node: Expr) -> bool:
    """Return true for n-grams of a string's characters."""
    if node.op != "ngrams" or node.params[1:] != ("characters",):
        return False
    return node.inputs[0].op != "constant"
