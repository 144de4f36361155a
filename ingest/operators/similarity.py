"""Similarity of strings and of lists of strings."""

from __future__ import annotations

from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError


def edit_distance(a: Operand, b: Operand) -> Expr:
    """Levenshtein distance of two strings: int32.

    It is the least number of characters (UTF-8 code points) to insert, delete or replace to make the strings
    equal. Only the first 256 characters of each string count. The algorithm is bit-parallel: about length(a)
    · length(b) / 64 steps (Myers 1999, Hyyrö 2001).

    Args:
        a: string, or a list of strings.
        b: string; a list only if a is none.

    Example: `edit_distance(lower(log.query), lower(ads.title))`.
    """
    nodes = (as_expr(a, "edit_distance"), as_expr(b, "edit_distance"))
    for node in nodes:
        need("edit_distance", node, ("string",), "two strings")
    return mapped("edit_distance", nodes, dtype="int32", device=Device("edit_distance({0}, {1})"))


def token_overlap(a: Operand, b: Operand) -> Expr:
    """Jaccard similarity of two lists of strings as sets, |a ∩ b| / |a ∪ b|: float32; 0 for two empty lists.

    Items are compared pairwise, so it suits lists of up to some hundred items.

    Example: `token_overlap(split(log.query, " "), split(ads.title, " "))`.
    """
    nodes = (as_expr(a, "token_overlap"), as_expr(b, "token_overlap"))
    for node in nodes:
        if node.dtype != "list<string>":
            raise ConfigError(f"token_overlap needs two list<string>, but {node} is {node.dtype}")
    device = Device("token_overlap({0}, {1})", rowwise=True)
    return Expr("token_overlap", nodes, dtype="float32", device=device)
