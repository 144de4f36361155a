"""Reference of the operators on lists, dictionaries, word vectors and ages, in plain Python and NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr

# What look-ups and embeddings were built from, by the node's digest.
DICTIONARIES: dict[str, tuple[dict[Any, Any], Any]] = {}
VECTORS: dict[str, tuple[dict[Any, Any], int]] = {}

ZERO = {"string": "", "bool": False}


def _unique(node: Expr, x: Any) -> list[Any]:
    first: dict[Any, Any] = {}
    for value in x:
        first.setdefault("nan" if value != value else value, value)
    return list(first.values())


def _total(node: Expr, x: Any) -> Any:
    if node.dtype == "int64":
        return np.add.reduce(x.astype(np.int64))  # wraps around
    total = 0.0
    for value in x:
        total += float(value)
    return total


def _mean(node: Expr, x: Any) -> float:
    total = 0.0
    for value in x:
        total += float(value)
    return total / len(x) if len(x) else 0.0


def _extreme(best: Callable[[list[Any]], Any]) -> Callable[[Expr, Any], Any]:
    return lambda node, x: best([value for value in x if not math.isnan(value)] or [0])


def _item(node: Expr, x: Any, index: Any) -> Any:
    inside = -len(x) <= index < len(x)
    return x[int(index)] if inside else ZERO.get(node.dtype, 0)


def _count(node: Expr, x: Any, value: Any) -> int:
    kinds = [dtypes.element(source.dtype) for source in node.inputs]
    if "string" in kinds:
        return sum(item == value for item in x)
    common = np.dtype(dtypes.promote(*kinds)).type
    return int(np.count_nonzero(x.astype(common) == common(value)))


def _lookup(node: Expr, x: Any) -> Any:
    mapping, default = DICTIONARIES[node.digest]
    if default is None:
        default = (
            [] if dtypes.is_list(node.dtype) and np.ndim(x) == 0 else ZERO.get(dtypes.element(node.dtype), 0)
        )
    if dtypes.is_list(node.inputs[0].dtype):
        return [mapping.get(value, default) for value in x]
    return mapping.get(x, default)


def _embedding(node: Expr, words: Any) -> Any:
    vectors, dim = VECTORS[node.digest]
    found = [vectors[word] for word in np.atleast_1d(np.asarray(words, object)) if word in vectors]
    total = np.zeros(dim, np.float32)
    for vector in found:
        total += vector
    return total / np.float32(len(found)) if found and node.params[1] == "mean" else total


def age(node: Expr, kinds: list[str], ts: Any, since: Any) -> Any:
    unit = {"s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7}[node.params[0]]
    return ((ts - since).astype(np.float64) / unit).astype(np.float32)


ROWWISE: dict[str, Callable[..., Any]] = {
    "head": lambda node, x: x[: node.params[0]],
    "tail": lambda node, x: x[-node.params[0] :],
    "unique": _unique,
    "total": _total,
    "mean": _mean,
    "largest": _extreme(max),
    "smallest": _extreme(min),
    "item": _item,
    "count_of": _count,
    "contains_item": lambda node, x, value: _count(node, x, value) > 0,
    "lookup": _lookup,
    "word_embedding": _embedding,
}
