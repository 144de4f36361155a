"""Expressions that use the operators on lists, dictionaries, word vectors and ages."""

from __future__ import annotations

from typing import Any

import numpy as np

from livectr.ingest import operators as op
from livectr.ingest.language.expr import ColumnRef, Expr, column
from tests.ingest.reference_lists import DICTIONARIES, VECTORS


def _root(name: str, dtype: str) -> Expr:
    return column(ColumnRef("t", name), dtype)


I64, I32, F32, TS = (
    _root("i64", "int64"),
    _root("i32", "int32"),
    _root("f32", "float32"),
    _root("ts", "int64"),
)
F64, BOOL, TEXT = _root("f64", "float64"), _root("bool", "bool"), _root("text", "string")
L64, LF, LTEXT = _root("l64", "list<int64>"), _root("lf", "list<float32>"), _root("ltext", "list<string>")
L32, LBOOL = _root("l32", "list<int32>"), _root("lbool", "list<bool>")
LETTERS, WORDS = op.ngrams(TEXT, 1), op.split(TEXT, " ")


def looked_up(x: Expr, mapping: dict[Any, Any], default: Any = None, **kept: Any) -> Expr:
    """Look-up whose reference is the mapping itself."""
    node = op.lookup(x, mapping, default, **kept)
    DICTIONARIES[node.digest] = (mapping, default)
    return node


def embedded(words: Expr, keys: list[Any], vectors: Any, pool: Any = "mean") -> Expr:
    """Word embedding whose reference is the vectors themselves."""
    node = op.word_embedding(words, (keys, vectors), pool)
    VECTORS[node.digest] = (dict(zip(keys, vectors, strict=True)), vectors.shape[1])
    return node


NUMBERS = {**{i: i * i - 5 for i in range(-3, 60, 2)}, -(2**63): -(2**63), -(2**63) + 1: 7, 2**63 - 1: 2**62}
NAMES = {"": "leer", "a": "", "aB": "Ä\\\0", "あ": "ひ", " ": "blank", "B": "b" * 40, "ß": "s"}
LISTS = {1: [3, 2**60], 2: [], 5: [-1], -(2**63): [8] * 9}
FLOATS = {3: [0.1, 2.5], 4: [], 7: [-1e300]}
VECTORS_7 = np.random.default_rng(7).normal(size=(6, 7)).astype(np.float32)
VECTORS_77 = np.random.default_rng(8).normal(size=(5, 77)).astype(np.float32)
CHARACTERS = ["a", "B", "あ", "😀", "ß", ","]

E7 = embedded(LETTERS, CHARACTERS, VECTORS_7)
E7_SUM = embedded(LTEXT, ["a", "aB", "", "B", "ß", ","], VECTORS_7, "sum")
E77 = embedded(L64 % 9, [1, 2, 3, -(2**63), 8], VECTORS_77)
E_WORD = embedded(TEXT, ["", "a", "aB", "B", " "], VECTORS_77, "sum")
E_KEY = embedded(I64, [0, 1, 2, 3, 5, 69], VECTORS_7)

LIST_EXPRESSIONS: dict[str, list[Expr]] = {
    "head": [
        op.head(L64, 1),
        op.head(LTEXT, 2),
        op.head(LBOOL, 3),
        op.head(op.head(L32, 5), 9),
        op.head(WORDS, 2),
    ],
    "tail": [
        op.tail(L64, 1),
        op.tail(LTEXT, 2),
        op.tail(LBOOL, 3),
        op.tail(L32, 99),
        op.lower(op.tail(WORDS, 1)),
    ],
    "unique": [
        op.unique(op.clip(L64, 0, 3)),
        op.unique(L32 // 40),
        op.unique(LBOOL),
        op.unique(LTEXT),
        op.unique(LETTERS),
        op.length(op.unique(LF)),
        op.bucketize(op.unique(op.clip(LF, 0, 2)), [0, 1, 2]),
    ],
    "total": [op.total(L64), op.total(L32), op.total(LF), op.total(LBOOL), op.total(LF * F64) > 1.5],
    "mean": [op.mean(L64), op.mean(L32), op.mean(LF), op.mean(LBOOL), op.mean(L64) > 30],
    "largest": [op.largest(L64), op.largest(L32), op.largest(LF), op.largest(LF * F64)],
    "smallest": [op.smallest(L64), op.smallest(L32), op.smallest(LF), op.smallest(LF * F64)],
    "item": [
        op.item(L64, 0),
        op.item(L32, -1),
        op.item(LF, 1),
        op.item(LBOOL, 2),
        op.item(LTEXT, -2),
        op.item(LTEXT, I32),
        op.item(L64, op.length(LTEXT) - 3),
        op.item(LETTERS, -(2**63)),
        op.item(L64, I64),
    ],
    "count_of": [
        op.count_of(L64, I64),
        op.count_of(op.clip(L64, 0, 2), 0),
        op.count_of(L32, I64),
        op.count_of(LF, F32),
        op.count_of(LF, 3),
        op.count_of(L64, 3.0),
        op.count_of(LBOOL, BOOL),
        op.count_of(LTEXT, "a"),
        op.count_of(LTEXT, TEXT),
        op.count_of(LETTERS, "あ"),
    ],
    "contains_item": [
        op.contains_item(L64 % 5, I64 % 5),
        op.contains_item(L32, 3),
        op.contains_item(LBOOL, True),
        op.contains_item(LTEXT, op.lower(TEXT)),
        op.contains_item(LETTERS, "ß"),
    ],
    "lookup": [
        looked_up(I64, NUMBERS, -9),
        looked_up(I32, NUMBERS),
        looked_up(L64, NUMBERS, 2**63 - 1),
        looked_up(I64, {3: 1.5, 4: -0.1}, 2.5),
        looked_up(L32 // 2, {3: True, 4: False}),
        looked_up(TEXT, {"": 1, "aB": 2, "b": 3}, -1),
        looked_up(LETTERS, {"a": 1, "あ": 2, "😀": 3, "\0": 4}),
        looked_up(TEXT, NAMES, "nichts ∅"),
        looked_up(LETTERS, NAMES),
        looked_up(I64 % 8, {1: "eins", 2: ""}, "–"),
        looked_up(I64, LISTS, [1, 2]),
        looked_up(I32 % 9, LISTS),
        looked_up(TEXT, {"a": [True], "": [False, True]}, [False]),
        op.total(looked_up(I64 % 8, FLOATS, [0.5])),
        op.item(looked_up(I32, FLOATS), 1),
    ],
    "word_embedding": [
        *(op.item(E7, i) for i in (0, 6, 7)),
        *(op.item(E7_SUM, i) for i in (1, -1)),
        *(op.item(E77, i) for i in (0, 31, 32, 63, 64, 71, 72, 76)),
        *(op.item(E_WORD, i) for i in (0, 76)),
        *(op.item(E_KEY, i) for i in (0, 6)),
        *(op.length(node) for node in (E7, E7_SUM, E77, E_WORD, E_KEY)),
        op.total(E77),
    ],
    "age": [
        op.age(TS, I64),
        op.age(TS, TS - 90_061_000, "d"),
        op.age(TS, 0, "m"),
        op.bucketize(op.age(TS, L64, "s"), [0]),
    ],
}
