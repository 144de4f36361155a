"""Expressions of every string operator on columns of words, JSON texts and numeric texts."""

from __future__ import annotations

from livectr.ingest import operators as op
from livectr.ingest.language.expr import Expr
from tests.ingest.operator_expressions import BOOL, F32, F64, I32, I64, L64, LBOOL, LF, LTEXT, TEXT, root

TITLE, JSON, NUMERIC = root("title", "string"), root("json", "string"), root("numeric", "string")
LJSON, LNUMERIC = root("ljson", "list<string>"), root("lnumeric", "list<string>")
WORDS = ["a", "B", "aB", "Ba", " z", "zÄ", "あ", "😀", "ß,Σ", "aBaB", "BaB", "@@", "@ [", "aa", "\\", "Ä"]
MANY_WORDS = [a + b for a in "aBZ@[ ," for b in "aBZ@[ ,"] + list("aBZ@[ ,")
SCALARS = ("int64", "int32", "float32", "float64", "bool", "string")
EXPRESSIONS: dict[str, list[Expr]] = {
    "json_field": [
        *(op.json_field(JSON, path, dtype) for path in ("a", "a.b", "a.0", "0.1.a") for dtype in SCALARS),
        op.json_field(JSON, "ä", "string"),
        op.json_field(JSON, "b.a.0", "int64"),
        op.json_field(LJSON, "a", "string"),
        op.json_field(LJSON, "1", "int64"),
    ],
    "cast": [
        *(op.cast(x, dtype) for x in (NUMERIC, I64, I32, F32, F64, BOOL) for dtype in SCALARS[:4]),
        *(op.cast(x, "bool") for x in (I64, I32, F32, F64, BOOL, LF)),
        *(op.cast(x, "string") for x in (I64, I32, BOOL, L64, LBOOL, TEXT)),
        op.cast(LF, "int32"),
        op.cast(LNUMERIC, "int64"),
        op.cast(LNUMERIC, "int32"),
        op.cast(5, "string"),
    ],
    "trim": [op.trim(TEXT), op.trim(LTEXT), op.trim(NUMERIC)],
    "substring": [
        op.substring(TEXT, 0, 3),
        op.substring(TEXT, 2),
        op.substring(TITLE, 9, 30),
        op.substring(TITLE, -20, 12),
        op.substring(TEXT, -3, 2),
        op.substring(TEXT, -2),
        op.substring(TEXT, -9, 5),
        op.substring(LTEXT, 1, 1),
        op.substring(TEXT, 1, 0),
    ],
    "contains": [
        op.contains(TEXT, "aB"),
        op.contains(TEXT, ""),
        op.contains(LTEXT, "Ä"),
        op.contains(TITLE, TEXT),
    ],
    "starts_with": [
        op.starts_with(TEXT, "a"),
        op.starts_with(TITLE, op.substring(TITLE, 0, 12)),
        op.starts_with(LTEXT, TEXT),
    ],
    "concat": [
        op.concat(TEXT, "|", TITLE),
        op.concat(TEXT, TEXT),
        op.concat("é", LTEXT, TEXT),
        op.concat(op.cast(I64, "string"), "_", TEXT, "_", TITLE, "", "x", op.lower(TEXT)),
    ],
    "keywords": [
        op.keywords(TEXT, WORDS),
        op.keywords(TITLE, WORDS),
        op.keywords(TEXT, MANY_WORDS),
        op.keywords(TEXT, ["zÄß"]),
    ],
    "edit_distance": [
        op.edit_distance(TEXT, TITLE),
        op.edit_distance(TITLE, op.lower(TITLE)),
        op.edit_distance(TEXT, "aB zÄ"),
        op.edit_distance(TEXT, LTEXT),
        op.edit_distance(
            op.concat(TITLE, TITLE, TITLE, TITLE), op.concat(op.substring(TITLE, 5), "b", TITLE, TITLE, TITLE)
        ),
    ],
    "token_overlap": [
        op.token_overlap(op.split(TEXT, " "), op.split(TITLE, " ")),
        op.token_overlap(LTEXT, LTEXT),
        op.token_overlap(op.ngrams(TEXT, 1), op.ngrams(TITLE, 1)),
        op.token_overlap(LTEXT, op.ngrams(TEXT, 2)),
    ],
}
