"""Expressions that use every string operator on the columns of the operator tests.

JSON and numbers are concatenated from those columns, so that a device computes them too.
"""

from __future__ import annotations

from livectr.ingest import operators as op
from livectr.ingest.language.expr import ColumnRef, Expr, column


def _root(name: str, dtype: str) -> Expr:
    return column(ColumnRef("t", name), dtype)


I64, I32, F64 = _root("i64", "int64"), _root("i32", "int32"), _root("f64", "float64")
BOOL, TEXT, LTEXT = _root("bool", "bool"), _root("text", "string"), _root("ltext", "list<string>")
WHOLE, YES = op.cast(I64, "string"), op.cast(BOOL, "string")
OUTER = op.concat('{"x": [{}, ', WHOLE, '], "a" : {"b": "', TEXT, r'\u00e4\ud83d\ude00\n"}, "ok": ')
JSON = op.concat(OUTER, YES, ', "f": [', WHOLE, ".", op.cast(I32 % 7, "string"), "e-3]}")
WORDS = ["a", "B", "aB", " z", "zÄ", "😀", "ß,Σ", "Σ", ",", "BB"]
LONG = op.concat(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)

TEXT_EXPRESSIONS: dict[str, list[Expr]] = {
    "json_field": [
        op.json_field(JSON, "a.b", "string"),
        op.json_field(JSON, "x.1", "int64"),
        op.json_field(JSON, "f.0", "float32"),
        op.json_field(JSON, "ok", "bool"),
        op.json_field(op.concat('{"a": "', LTEXT, '"}'), "a", "string"),
    ],
    "cast": [
        op.cast(F64, "int32"),
        op.cast(I64, "float32"),
        op.cast(op.concat(" ", WHOLE, "e-20 "), "float64"),
        op.cast(op.concat("0.", op.trim(op.substring(WHOLE, -30, 40)), WHOLE), "float32"),
        op.cast(op.concat(LTEXT, WHOLE), "int64"),
    ],
    "trim": [op.trim(TEXT), op.trim(LTEXT)],
    "substring": [op.substring(TEXT, 2, 3), op.substring(LONG, -20, 15), op.substring(LTEXT, -2)],
    "contains": [op.contains(TEXT, "aB"), op.contains(LTEXT, TEXT)],
    "starts_with": [op.starts_with(TEXT, "a"), op.starts_with(LONG, TEXT)],
    "concat": [op.concat(LONG, "|", TEXT), op.concat("é", LTEXT, TEXT)],
    "keywords": [
        op.keywords(TEXT, WORDS),
        op.keywords(LONG, [a + b for a in "aBzÄß,Σж😀 " for b in "aBzÄß,Σж"]),
    ],
    "edit_distance": [op.edit_distance(TEXT, LTEXT), op.edit_distance(LONG, op.lower(LONG))],
    "token_overlap": [op.token_overlap(LTEXT, op.ngrams(TEXT, 2)), op.token_overlap(LTEXT, LTEXT)],
}
