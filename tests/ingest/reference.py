"""Reference of every operator in NumPy and plain Python: one node at a time, nothing shared, nothing
fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.language.keys import key_of
from tests.ingest import reference_lists, reference_text

Array = npt.NDArray[Any]
RAW = ("utf-8", "surrogateescape")  # n-grams of bytes may cut a character
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Column:
    """Values of all rows, concatenated; `lengths` of each row's list, None for scalars."""

    values: Array
    lengths: Array | None = None

    def rows(self) -> list[Any]:
        if self.lengths is None:
            return list(self.values)
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


def numpy_dtype(dtype: str) -> Any:
    kind = dtypes.element(dtype)
    return object if kind in dtypes.TEXTS else np.dtype(kind)


def texts(values: Sequence[str]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def root(node: Expr, batch: pa.RecordBatch) -> Column:
    """The values of a root; nulls filled."""
    rows = batch.column(batch.schema.names.index(node.name)).to_pylist()
    kind = numpy_dtype(node.dtype)
    empty = b"" if dtypes.element(node.dtype) == "binary" else ""
    default: Any = empty if kind is object else kind.type(0)
    if isinstance(node.ref, ColumnRef) and node.ref.fill is not None:
        default = node.ref.fill
    if not dtypes.is_list(node.dtype):
        filled = [default if value is None else value for value in rows]
        return Column(texts(filled) if kind is object else np.array(filled, kind))
    lists = [row or [] for row in rows]
    flat = [default if value is None else value for row in lists for value in row]
    lengths = np.array([len(row) for row in lists], np.int64)
    return Column(texts(flat) if kind is object else np.array(flat, kind), lengths)


def evaluate(node: Expr, batch: pa.RecordBatch) -> Column:
    """The node's values, computed from its inputs' values."""
    rows = batch.num_rows
    if node.is_root:
        return root(node, batch)
    if node.op == "constant":
        value, kind = node.params[0], numpy_dtype(node.dtype)
        return Column(texts([value] * rows) if kind is object else np.full(rows, value, kind))
    inputs = [evaluate(source, batch) for source in node.inputs]
    with np.errstate(all="ignore"):
        if node.op in ROWWISE and (node.op != "length" or inputs[0].lengths is not None):
            return _rowwise(node, inputs, rows)
        lengths = next((column.lengths for column in inputs if column.lengths is not None), None)
        values = [
            column.values
            if column.lengths is not None or lengths is None
            else np.repeat(column.values, lengths)
            for column in inputs
        ]
        kinds = [dtypes.element(source.dtype) for source in node.inputs]
        result = MAPPED[node.op](node, kinds, *values)
    return Column(result if result.dtype == object else result.astype(numpy_dtype(node.dtype)), lengths)


def _rowwise(node: Expr, inputs: list[Column], rows: int) -> Column:
    results = [
        ROWWISE[node.op](node, *row) for row in zip(*(column.rows() for column in inputs), strict=True)
    ]
    kind = numpy_dtype(node.dtype)
    if not dtypes.is_list(node.dtype):
        return Column(np.array(results, kind))
    flat = [value for row in results for value in row]
    lengths = np.array([len(row) for row in results], np.int64)
    return Column(texts(flat) if kind is object else np.array(flat, kind), lengths)


# Mapped operators: (node, element types of the inputs, arrays of elements) -> array of elements.


def _numbers(function: Callable[..., Array]) -> Callable[..., Array]:
    def apply(node: Expr, kinds: list[str], a: Array, b: Array) -> Array:
        common = np.dtype(dtypes.element(node.dtype))
        return function(a.astype(common), b.astype(common))

    return apply


def raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode(*RAW)


def _compare(function: Callable[..., Any]) -> Callable[..., Array]:
    def apply(node: Expr, kinds: list[str], a: Array, b: Array) -> Array:
        if kinds[0] in dtypes.TEXTS:
            return np.array([function(raw(x), raw(y)) for x, y in zip(a, b, strict=True)], bool)
        common = np.dtype(dtypes.promote(*kinds))
        return np.asarray(function(a.astype(common), b.astype(common)))

    return apply


def _key(node: Expr, kinds: list[str], x: Array) -> Array:
    if kinds[0] not in dtypes.TEXTS:
        return x.astype(np.int64)
    return key_of(pa.array([v if isinstance(v, bytes) else v.encode(*RAW) for v in x], pa.binary()))


def _clip(node: Expr, kinds: list[str], x: Array) -> Array:
    lo, hi = node.params
    x = x if lo is None else np.where(x < lo, np.asarray(lo, x.dtype), x)
    return x if hi is None else np.where(x > hi, np.asarray(hi, x.dtype), x)


def _where(node: Expr, kinds: list[str], test: Array, a: Array, b: Array) -> Array:
    if kinds[1] == "string":
        return texts([x if t else y for t, x, y in zip(test, a, b, strict=True)])
    common = numpy_dtype(node.dtype)
    return np.where(test, a.astype(common), b.astype(common))


def _bucketize(node: Expr, kinds: list[str], x: Array) -> Array:
    return np.asarray(np.searchsorted(np.array(node.params[0]), x, side="right"))


def _moment(ts_ms: int, offset_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=int(ts_ms) + int(offset_ms))


BLOCKS = (range(0x180), range(0x386, 0x3AC), range(0x400, 0x590))


def lower_character(c: str) -> str:
    """Lower case of a character that `lower` maps."""
    low = c.lower()
    known = any(ord(c) in block for block in BLOCKS)
    return low if known and len(low) == 1 and len(low.encode()) == len(c.encode()) else c


def _lower(node: Expr, kinds: list[str], x: Array) -> Array:
    return texts(["".join(map(lower_character, text)) for text in x])


MAPPED: dict[str, Callable[..., Array]] = {
    "age": reference_lists.age,
    "add": _numbers(np.add),
    "subtract": _numbers(np.subtract),
    "multiply": _numbers(np.multiply),
    "divide": _numbers(np.divide),
    "floor_divide": _numbers(np.floor_divide),
    "modulo": _numbers(np.mod),
    "less": _compare(lambda a, b: a < b),
    "less_equal": _compare(lambda a, b: a <= b),
    "greater": _compare(lambda a, b: a > b),
    "greater_equal": _compare(lambda a, b: a >= b),
    "equal": _compare(lambda a, b: a == b),
    "not_equal": _compare(lambda a, b: a != b),
    "logical_and": lambda node, kinds, a, b: a & b,
    "logical_or": lambda node, kinds, a, b: a | b,
    "logical_not": lambda node, kinds, a: ~a,
    "key": _key,
    "bucketize": _bucketize,
    "log1p": lambda node, kinds, x: np.log1p(x.astype(np.float64)).astype(np.float32),
    "clip": _clip,
    "normalise": lambda node, kinds, x, mean, std: ((x.astype(np.float64) - mean) / std).astype(np.float32),
    "hour": lambda node, kinds, ts, offset: np.array(
        [_moment(*pair).hour for pair in zip(ts, offset, strict=True)]
    ),
    "weekday": lambda node, kinds, ts, offset: np.array(
        [_moment(*pair).weekday() for pair in zip(ts, offset, strict=True)]
    ),
    "lower": _lower,
    "where": _where,
    "length": lambda node, kinds, x: np.array([len(text) for text in x]),
    **reference_text.MAPPED,
}


# Rowwise operators: (node, one row's value or array of each input) -> the row's value or list.

MASK = 2**64 - 1


def mix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def _cross(node: Expr, *inputs: Any) -> Any:
    hashes: list[int] | None = None
    for value in inputs:
        items = [int(item) & MASK for item in np.atleast_1d(value)]
        if hashes is None:
            hashes = [mix64(item) for item in items]
        else:
            hashes = [
                mix64((h * 0x9E3779B97F4A7C15 + item + 0x632BE59BD9B4E019) & MASK)
                for h in hashes
                for item in items
            ]
    signed = [h - 2**64 if h >= 2**63 else h for h in hashes or []]
    return signed if dtypes.is_list(node.dtype) else signed[0]


def _ngrams(node: Expr, x: Any) -> Sequence[str | bytes]:
    n = node.params[0]
    if not isinstance(x, str | bytes):
        return [" ".join(x[i : i + n]) for i in range(len(x) - n + 1)]
    if node.params[1] == "characters":
        return [x[i : i + n] for i in range(len(x) - n + 1)]
    x = x if isinstance(x, bytes) else x.encode()
    return [x[i : i + n].decode(*RAW) for i in range(len(x) - n + 1)]


ROWWISE: dict[str, Callable[..., Any]] = {
    **reference_lists.ROWWISE,
    "cross": _cross,
    "length": lambda node, x: len(x),
    "split": lambda node, x, separator: [piece for piece in x.split(separator) if piece],
    "ngrams": _ngrams,
    **reference_text.ROWWISE,
}
