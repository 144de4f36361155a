"""A pipeline that uses every operator, over columns of every type and origin.

Its expressions are those of the operators' own tests; their columns are exchanged for columns of impressions,
of two look-up tables, of histories and of fields in JSON, taking turns.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from livectr.ingest import operators as op
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.ingest.language.streams import Stream, label_join, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.operators import Operator
from livectr.ingest.pipeline import Pipeline
from livectr.models import DeepFM
from tests.ingest.operator_expressions import EXPRESSIONS
from tests.ingest.statistics_expressions import EXPRESSIONS as STATISTICS
from tests.ingest.string_expressions import EXPRESSIONS as TEXT_EXPRESSIONS

PER_OPERATOR = 3
"""Expressions of each operator: the columns make the difference here, the operators' tests do the rest."""

impressions = Stream(
    "impressions",
    key="user_id",
    time="ts",
    columns={
        "request_id": "int64",
        "user_id": "int64",
        "ts": "int64",
        "shop": "string",
        "i64": "int64",
        "i32": "int32",
        "f32": "float32",
        "f64": "float64",
        "flag": "bool",
        "query": "string",
        "data": "binary",
        "l64": "list<int64>",
        "l32": "list<int32>",
        "lf32": "list<float32>",
        "lf64": "list<float64>",
        "lbool": "list<bool>",
        "ltext": "list<string>",
        "extra": "string",
        "extras": "list<string>",
        "numbers": "list<string>",
        "context": "string",
        "os": "string",
        "zoom": "float64",
        "page": "string",
        "slot": "int32",
        "rating": "float64",
        "note": "string",
        "visits": "int64",
        "signed_in": "bool",
    },
    json_fields={"os": "context.device.os", "zoom": "context.zoom"},
    fill={"page": "unknown ∅", "slot": 7},
)
clicks = Stream(
    "clicks",
    key="user_id",
    time="ts",
    columns={"request_id": "int64", "user_id": "int64", "ts": "int64", "ad_id": "int64", "shop": "string"},
)
users = Table(
    "users",
    key="user_id",
    columns={
        "user_id": "int64",
        "age": "int32",
        "joined": "int64",
        "income": "float64",
        "vip": "bool",
        "city": "string",
        "profile": "string",
        "photo": "binary",
        "interests": "list<string>",
        "scores": "list<float32>",
    },
)
shops = Table(
    "shops",
    key="shop",
    columns={
        "shop": "string",
        "rank": "int64",
        "floor": "int32",
        "rate": "float32",
        "open": "bool",
        "name": "string",
        "code": "string",
        "ads": "list<int64>",
        "sizes": "list<int32>",
        "days": "list<bool>",
    },
)
log = label_join(impressions, clicks, on="request_id", window="10m").lookup(users).lookup(shops)

CLICKED, VISITED = recent(clicks.ad_id, n=4, within="1h"), recent(clicks.shop, n=2, within="1m")
TEXTS = (log.query, users.city, shops.name, log.os)
TURNS: dict[str, tuple[Expr, ...]] = {
    "int64": (log.i64, shops.rank, users.joined, op.fill_null(log.visits, -5)),
    "int32": (log.i32, users.age, shops.floor, log.slot),
    "float32": (log.f32, shops.rate),
    "float64": (log.f64, users.income, log.zoom, op.fill_null(log.rating, 2.5)),
    "bool": (log.flag, users.vip, shops.open, op.fill_null(log.signed_in, True)),
    "string": (*TEXTS, log.page, op.fill_null(log.note, "nil ñ")),
    "binary": (log.data, users.photo),
    "list<int64>": (log.l64, shops.ads, CLICKED, VISITED),
    "list<int32>": (log.l32, shops.sizes),
    "list<float32>": (log.lf32, users.scores),
    "list<bool>": (log.lbool, shops.days),
    "list<string>": (log.ltext, users.interests),
    "ts": (log.ts, users.joined),
    "json": (log.extra, users.profile),
    "ljson": (log.extras,),
    "numeric": (shops.code, log.query),
    "lnumeric": (log.numbers,),
}
"""Columns in place of those of the operators' tests: by their names, else by their types."""
NULLABLE = {"int64": log.visits, "string": log.note, "bool": log.signed_in, "float32": shops.rate}
"""A request can leave out a column only if every feature of it fills its nulls."""


def over(node: Expr, turn: int) -> Expr:
    """An expression of the operators' tests over this pipeline's columns."""
    if isinstance(node.params[0] if node.params else None, ColumnRef) and node.is_root:
        ref = node.ref
        assert isinstance(ref, ColumnRef)
        chosen = TURNS.get(ref.column) or TURNS[node.dtype]
        if ref.fill is None:
            return chosen[turn % len(chosen)]
        own = NULLABLE[node.dtype].ref
        assert isinstance(own, ColumnRef)
        return column(replace(own, fill=ref.fill), node.dtype)
    inputs = [over(source, turn + place) for place, source in enumerate(node.inputs)]
    return Expr(node.op, inputs, dtype=node.dtype, params=node.params, device=node.device)


minute = op.operator("int64 ts -> int32", "int32_t(modulo(ts / 60000, int64_t(60)))", name="minute")
blend = Operator("float64 a, float32 b, bool c, string s -> float64", "c ? a * 0.5 + b : s.size * 0.25")

CASES: dict[str, list[Expr]] = {
    name: [over(node, turn) for turn, node in zip(count(), nodes[:PER_OPERATOR])]
    for name, nodes in (EXPRESSIONS | TEXT_EXPRESSIONS | STATISTICS).items()
    if name not in ("column", "dense")
}
CASES["fill_null"] += [
    op.fill_null(users.age, -30),
    op.fill_null(users.city, "nowhere"),
    op.fill_null(users.income, 1e-3),
    op.fill_null(users.vip, True),
    op.fill_null(shops.rank, 2**62),
    op.fill_null(shops.rate, 0.1),
    op.fill_null(log.page, "never: the stream's fill comes first"),
    op.fill_null(log.slot, -7),
]
CASES["operator"] = [minute(log.ts), minute(log.l64), minute(users.joined)]
CASES["Operator"] = [blend(log.f64, shops.rate, log.flag, log.query), blend(users.income, log.f32, True, "x")]
CASES["word_embedding"] += [over(EXPRESSIONS["word_embedding"][0].inputs[0], turn) for turn in range(2)]
CASES["raw"] = [node for kind, nodes in TURNS.items() for node in nodes] + [log.user_id, log.shop, log.lf64]


FLOATS = ("list<float32>", "list<float64>")


def _shown(node: Expr) -> Expr:
    """Expression that shows the values of a list of floats as keys."""
    return op.bucketize(node, [-1e30, -3, 0, 0.1, 0.5, 1, 5, 1e3]) if node.dtype in FLOATS else node


_features = {f"{name}.{i}": node for name, nodes in CASES.items() for i, node in enumerate(nodes)}
sparse = {
    name: _shown(node)
    for name, node in _features.items()
    if dtypes.element(node.dtype) not in ("float32", "float64") or node.dtype in FLOATS
}
dense = {
    f"{name} dense": node
    for name, node in _features.items()
    if node.dtype in dtypes.FIXED or (name.startswith("word_embedding") and node.dtype in FLOATS)
}
pipeline = Pipeline(log, sparse=sparse, dense=dense, rank=DeepFM(dim=4, hidden=(8,)))
