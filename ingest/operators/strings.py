"""Functions of strings (UTF-8)."""

from __future__ import annotations

from typing import Literal

from livectr.ingest.language.expr import Device, Expr, Operand, as_expr, mapped, need
from livectr.kernels.errors import ConfigError


def lower(x: Operand) -> Expr:
    """Lower case of a string, or of each string of a list.

    Every character is mapped by itself (Unicode's simple case mapping) in ASCII, Latin-1, Latin Extended-A,
    modern Greek, Cyrillic and Armenian, where the lower case has as many bytes; other bytes stay as they are.

    Example: `lower(log.query)`.
    """
    node = as_expr(x, "lower")
    need("lower", node, ("string",), "a string")
    return mapped("lower", (node,), dtype="string", device=Device("lower({0}, {sink})"))


def split(x: Operand, separator: str) -> Expr:
    """Pieces of a string between separators: list<string>. Empty pieces are left out.

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
    """Runs of `n` neighbours: list<string>; none where there are fewer than n.

    Of a list of strings: n neighbouring strings, joined by one space. Of a string: n neighbouring characters
    (UTF-8 code points), or bytes.

    Example: `ngrams(split(log.query, " "), 2)`, `ngrams(ads.title, 3)`.
    """
    node = as_expr(x, "ngrams")
    params: tuple[object, ...] = (n,)
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= 64:
        raise ConfigError(f"ngrams({node}): n must be between 1 and 64, not {n!r}")
    if node.dtype == "list<string>":
        call = f"word_ngrams({{0}}, {n}, {{sink}})"
    elif (node.dtype, of) in (("string", "characters"), ("string", "bytes"), ("binary", "bytes")):
        call, params = f"{of[:-1]}_ngrams({{0}}, {n}, {{sink}})", (n, of)
    else:
        raise ConfigError(
            f"ngrams needs a string (of characters or bytes), binary (of bytes) or list<string>, "
            f"but {node} is {node.dtype} and of is {of!r}"
        )
    return Expr("ngrams", (node,), dtype="list<string>", device=Device(call, rowwise=True), params=params)
