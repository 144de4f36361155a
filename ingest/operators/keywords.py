"""Words of a dictionary within strings."""

from __future__ import annotations

from collections.abc import Sequence

from livectr.ingest.language.expr import Device, Expr, Operand, as_expr
from livectr.ingest.language.resources import Resource
from livectr.kernels.errors import ConfigError
from livectr.kernels.operators.keywords import automaton


class Words(tuple[str, ...]):
    """A dictionary; short where an expression is shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} words>"


def keywords(x: Operand, words: Sequence[str]) -> Expr:
    """Indexes of the dictionary's words that occur anywhere in the string x: list<int32>, increasing, each
    once.

    A word is found byte for byte, also within a longer one ("art" in "start"): for whole words put a
    separator around both, as in `keywords(concat(" ", x, " "), [" art "])`. The time grows with the string's
    bytes, not with the dictionary (Aho, Corasick 1975); more than 32 different words in one string cost one
    more pass for each 32.

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
