"""Keyword search in strings by a dictionary."""

from __future__ import annotations

from collections.abc import Sequence

from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr
from livectr.ingest.language.resources import Resource
from livectr.kernels.operators.keywords import automaton
from livectr.system.errors import ConfigError


class Words(tuple[str, ...]):
    """Dictionary with a short `repr`, for messages."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} words>"


def keywords(x: Operand, words: Sequence[str]) -> Expr:
    """Dictionary words that occur in a string, by their index: list<int32>, increasing, without repeats.

    Words are matched byte for byte, also inside longer words ("art" in "start"). To match whole words, put a
    separator around both, as in `keywords(concat(" ", x, " "), [" art "])`. The time depends on the string's
    bytes, not on the dictionary (Aho, Corasick 1975). More than 32 different words in a string cost a further
    pass for each 32.

    Args:
        x: string.
        words: the dictionary: different, non-empty strings.

    Example: `keywords(lower(ads.title), ["sale", "new", "free shipping"])`.
    """
    node = as_expr(x, "keywords")
    if node.dtype != "string":
        raise ConfigError(f"keywords needs a string, but {node} is {node.dtype}")
    if isinstance(words, str) or not words or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"keywords({node}): words must be strings, at least one, not {_short(words)}")
    if "" in words:
        raise ConfigError(f"keywords({node}): word {list(words).index('')} is empty; leave it out")
    seen: dict[str, int] = {}
    for index, word in enumerate(words):
        if seen.setdefault(word, index) != index:
            raise ConfigError(f"keywords({node}): words {seen[word]} and {index} are both {word!r}")
    arrays = automaton([word.encode() for word in words])
    resource = Resource("Keywords", arrays, (len(arrays[0]),))
    device = Device("keywords({0}, {resource}, {sink})", rowwise=True, resource=resource)
    return Expr("keywords", (node,), dtype="list<int32>", device=device, params=(Words(words),))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
