"""Columns of every type, and expressions that use every operator on them."""

from __future__ import annotations

from livectr.ingest import operators as op
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, column
from tests.ingest.list_expressions import LIST_EXPRESSIONS


def root(name: str, dtype: str) -> Expr:
    return column(ColumnRef("t", name), dtype)


I64, I32, F32, F64 = (
    root("i64", "int64"),
    root("i32", "int32"),
    root("f32", "float32"),
    root("f64", "float64"),
)
BOOL, TEXT, TS, DATA = (
    root("bool", "bool"),
    root("text", "string"),
    root("ts", "int64"),
    root("data", "binary"),
)
L64, LF, LTEXT = root("l64", "list<int64>"), root("lf", "list<float32>"), root("ltext", "list<string>")
L32, LBOOL = root("l32", "list<int32>"), root("lbool", "list<bool>")
ROOTS = (I64, I32, F32, F64, BOOL, TEXT, TS, DATA, L64, LF, LTEXT, L32, LBOOL)

# op → expressions that use it. Keys show integers, bools and strings exactly; `dense` shows floats.
EXPRESSIONS: dict[str, list[Expr]] = {
    **LIST_EXPRESSIONS,
    "column": [node for node in ROOTS if dtypes.element(node.dtype) not in ("float32", "float64")],
    "dense": [I64, I32, F32, F64, BOOL],
    "fill_null": [
        op.fill_null(I64, -7),
        op.fill_null(TEXT, "ö\n\\"),
        op.fill_null(BOOL, True),
        op.fill_null(F32, 0.1),
    ],
    "add": [I64 + 3, I32 + I64, F32 + 0.1, 1 + BOOL, L64 + I64, 2 + L32, I64 + F32, F64 + F32, BOOL + BOOL],
    "subtract": [I64 - I32, 1 - I32, -I64, F32 - 1, 0.5 - F64, L32 - 1, I32 - (-(2**31))],
    "multiply": [I64 * I64, I32 * I32, F32 * 2, F64 * 1e-3, L64 * I32],
    "divide": [I64 / I32, F32 / F32, F64 / I32, 1 / F32],
    "floor_divide": [
        I64 // I32,
        I64 // -1,
        I32 // 7,
        I64 // -7,
        L64 // 3,
        F64 // F32,
        F32 // 0.3,
        F64 // -1.5,
    ],
    "modulo": [I64 % I32, I64 % -1, I32 % 7, I64 % -7, L64 % 3, F64 % F32, F32 % 0.3, F64 % -1.5, I32 % 0],
    "less": [I64 < I32, F32 < 0.1, TEXT < "a,", LTEXT < TEXT, LF < F32],
    "less_equal": [I64 <= 5, F64 <= F32, TEXT <= "B", LTEXT <= "Ä"],
    "greater": [I64 > 5.5, F64 > 0, TEXT > "a", L64 > I64],
    "greater_equal": [I32 >= BOOL, TEXT >= "a"],
    "equal": [I64 == I32, F32 == F64, TEXT == "", TEXT == "aB", LTEXT == "a", BOOL == True],  # noqa: E712
    "not_equal": [I64 != 0, F32 != F32, TEXT != "a", LBOOL != BOOL],
    "logical_and": [BOOL & (I64 > 0), LBOOL & BOOL],
    "logical_or": [BOOL | (I64 > 0), LBOOL | False],
    "logical_not": [~BOOL, ~LBOOL],
    "where": [
        op.where(BOOL, I64, I32),
        op.where(BOOL, F32, 7),
        op.where(I64 > 3, TEXT, "Ärger"),
        op.where(LBOOL, I32, 5),
        op.where(LTEXT == "a", TEXT, "b"),
        op.where(BOOL, BOOL, False),
        op.where(BOOL, L64, 0),
    ],
    "key": [
        op.key(I32),
        op.key(TEXT),
        op.key(LTEXT),
        op.key(LBOOL),
        op.key(DATA),
        op.key("constant"),
        op.key(5),
    ],
    "cross": [
        op.cross(I64, I32),
        op.cross(TEXT, BOOL, I64),
        op.cross(L64, I64),
        op.cross(I64, LTEXT),
        op.cross(L64, L32, LBOOL),
        op.cross(I64, L64, TEXT, LTEXT),
        op.cross(0, 0),
        op.cross(L64, L64),
    ],
    "bucketize": [
        op.bucketize(I64, [0, 3, 18, 2**53 + 1]),
        op.bucketize(I32, [1]),
        op.bucketize(F32, [-1.5, 0.1, 2, 69]),
        op.bucketize(F64, [0, 1e-300, 1e300]),
        op.bucketize(LF, [0, 5, 10]),
        op.bucketize(L64, [0.5, 7.25]),
        op.bucketize(BOOL, [1]),
    ],
    "log1p": [
        op.log1p(I64),
        op.log1p(F32),
        op.log1p(op.clip(F64, 0, None)),
        op.bucketize(op.log1p(LF), [0, 1, 2]),
    ],
    "clip": [
        op.clip(I64, -1, 7),
        op.clip(I32, None, 5),
        op.clip(F32, 0.1, None),
        op.clip(F64, -1e300, 1e300),
        op.clip(L64, 0, 9),
        op.clip(I64, None, None),
    ],
    "normalise": [op.normalise(I64, 3, 2.5), op.normalise(F32, 0.1, 1e-3), op.normalise(F64, -2, 7)],
    "hour": [op.hour(TS), op.hour(TS, utc_offset_hours=5.5), op.hour(TS, -8)],
    "weekday": [op.weekday(TS), op.weekday(TS, utc_offset_hours=8)],
    "length": [op.length(L64), op.length(LTEXT), op.length(TEXT), op.length(op.split(TEXT, " "))],
    "lower": [op.lower(TEXT), op.lower(LTEXT), op.lower(op.lower(TEXT))],
    "split": [op.split(TEXT, " "), op.split(op.lower(TEXT), ","), op.split(TEXT, "aB"), op.split(TEXT, "あ")],
    "ngrams": [
        op.ngrams(LTEXT, 1),
        op.ngrams(LTEXT, 2),
        op.ngrams(op.split(TEXT, " "), 3),
        op.ngrams(TEXT, 1),
        op.ngrams(TEXT, 3),
        op.lower(op.ngrams(TEXT, 2)),
        op.ngrams(DATA, 2, of="bytes"),
    ],
}
