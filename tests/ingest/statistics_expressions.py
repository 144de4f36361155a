"""Running statistics: expressions of every operator, and a reference over all earlier values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from livectr.ingest import operators as op
from livectr.ingest.language.expr import ColumnRef, Expr, column


def root(name: str, dtype: str) -> Expr:
    return column(ColumnRef("t", name), dtype)


I64, I32, F32, F64 = (root(name, name) for name in ("int64", "int32", "float32", "float64"))
BOOL, TEXT, L64 = root("bool", "bool"), root("text", "string"), root("l64", "list<int64>")
Past = list[Any]


def usable(past: Past) -> np.ndarray:
    values = np.array(past, np.float64)
    return values[np.abs(values) < 1e150]


def zscore(node: Expr, past: Past, x: np.ndarray) -> np.ndarray:
    values = usable(past)
    spread = values.std() if len(values) else 0.0
    return (x.astype(np.float64) - values.mean()) / spread if spread else np.zeros(len(x))


def minmax(node: Expr, past: Past, x: np.ndarray) -> np.ndarray:
    values = usable(past)
    if not len(values) or values.min() == values.max():
        return np.zeros(len(x))
    scaled = (x.astype(np.float64) - values.min()) / (values.max() - values.min())
    return np.clip(scaled, 0, 1)


def quantile_bins(node: Expr, past: Past, x: np.ndarray) -> np.ndarray:
    n, fit_rows = node.params
    values = usable(past)
    fits = [fit_rows >> k for k in range(fit_rows.bit_length()) if n <= fit_rows >> k <= len(values)]
    if not fits:
        return np.zeros(len(x), np.int32)
    bounds = [np.quantile(values[: fits[0]], i / n) for i in range(1, n)]
    return np.searchsorted(bounds, x.astype(np.float64), side="right")


def frequency(node: Expr, past: Past, x: np.ndarray) -> np.ndarray:
    return np.array([past.count(value) for value in x.tolist()], np.int64)


STATISTICS: dict[str, tuple[Callable[..., np.ndarray], list[Expr]]] = {
    "zscore": (zscore, [op.zscore(I64 % 1000), op.zscore(F32), op.zscore(F64), op.zscore(BOOL)]),
    "minmax": (minmax, [op.minmax(I64), op.minmax(I32), op.minmax(F32), op.minmax(F64), op.minmax(BOOL)]),
    "quantile_bins": (
        quantile_bins,
        [op.quantile_bins(I64, 4, 12), op.quantile_bins(F64, 2, 2), op.quantile_bins(F32 + 1, 10, 15)],
    ),
    "frequency": (
        frequency,
        [op.frequency(I64), op.frequency(I32), op.frequency(BOOL), op.frequency(TEXT), op.frequency(I64 % 3)],
    ),
}
EXPRESSIONS = {name: nodes for name, (_, nodes) in STATISTICS.items()}
