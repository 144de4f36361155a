"""How alike two strings or lists of strings are."""

from __future__ import annotations

from livectr.ingest.language.expr import Device, Expr, Operand, as_expr, mapped, need
from livectr.kernels.errors import ConfigError


def edit_distance(a: Operand, b: Operand) -> Expr:
    """Levenshtein distance of two strings: the fewest characters (UTF-8 code points) to insert, delete or
    replace to make one the other. int32. Only the first 256 characters of each string count. One of the two
    may be a list: then of each of its strings.

    Bit-parallel: about length(a) · length(b) / 64 steps (Myers 1999, Hyyrö 2001).

    Example: `edit_distance(lower(log.query), lower(ads.title))`.
    """
    nodes = (as_expr(a, "edit_distance"), as_expr(b, "edit_distance"))
    for node in nodes:
        need("edit_distance", node, ("string",), "two strings")
    return mapped("edit_distance", nodes, dtype="int32", device=Device("edit_distance({0}, {1})"))


def token_overlap(a: Operand, b: Operand) -> Expr:
    """Jaccard overlap of two lists of strings, as sets: items in both / items in either. float32; 0 when both
    are empty.

    Items are compared with each other, so lists of up to some hundred items are meant.

    Example: `token_overlap(split(log.query, " "), split(ads.title, " "))`.
    """
    nodes = (as_expr(a, "token_overlap"), as_expr(b, "token_overlap"))
    for node in nodes:
        if node.dtype != "list<string>":
            raise ConfigError(f"token_overlap needs two list<string>, but {node} is {node.dtype}")
    device = Device("token_overlap({0}, {1})", rowwise=True)
    return Expr("token_overlap", nodes, dtype="float32", device=device)
