"""Comparison of operators with their NumPy references; several operators share one compiled plan.

A plan of ten operators compiles three times as fast as ten plans, since each includes the same headers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from livectr.ingest.extract.engines import Wanted
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.plan.dag import FeaturePlan
from tests.ingest.reference import evaluate

OPERATORS_IN_A_PLAN = 10
ENGINES: tuple[Wanted, ...] = ("calls", "fused")
Expressions = Mapping[str, Sequence[Expr]]


def plan_of(nodes: Sequence[Expr]) -> FeaturePlan:
    """Every node as a feature: keys of whole numbers, bools and strings, dense numbers."""
    sparse = {f"s{i}": node for i, node in enumerate(nodes) if "float" not in node.dtype}
    dense = {f"d{i}": node for i, node in enumerate(nodes) if node.dtype in dtypes.FIXED}
    return FeaturePlan(sparse, dense)


def without_users_operators(plan: FeaturePlan) -> FeaturePlan:
    """The plan's features that need no compiler."""

    def plain(node: Expr) -> bool:
        return not (node.device and node.device.user) and all(map(plain, node.inputs))

    sparse, dense = ({n: e for n, e in part.items() if plain(e)} for part in (plan.sparse, plan.dense))
    return FeaturePlan(sparse, dense)


@cache
def _extractor(nodes: tuple[Expr, ...], engine: Wanted) -> Extractor:
    return Extractor(plan_of(nodes), engine=engine)


def check(extractor: Extractor, batch: pa.RecordBatch, only: Sequence[Expr] | None = None) -> None:
    """Compare the extractor's features with the reference's, bit for bit.

    Args:
        only: the nodes that are compared (default: all).
    """
    features = extractor(batch)
    rows = batch.num_rows
    assert features.rows == rows and features.offsets[0] == 0 and features.offsets[-1] == len(features.keys)
    compared = None if only is None else {id(node) for node in only}
    for index, node in enumerate(extractor.plan.sparse.values()):
        if compared is not None and id(node) not in compared:
            continue
        want = evaluate(node, batch)
        offsets, keys = features.field(index) if rows else (np.zeros(1, np.int32), features.keys)
        lengths = np.ones(rows, np.int64) if want.lengths is None else want.lengths
        np.testing.assert_array_equal(np.diff(offsets), lengths, err_msg=str(node))
        np.testing.assert_array_equal(keys, want.values.astype(np.int64), err_msg=str(node))
    for index, node in enumerate(extractor.plan.dense.values()):
        if compared is not None and id(node) not in compared:
            continue
        with np.errstate(all="ignore"):
            value = evaluate(node, batch).values.astype(np.float32)
        want_dense = np.where(np.isfinite(value), value, np.float32(0))
        np.testing.assert_array_equal(features.dense[:, index], want_dense, err_msg=str(node))


class OperatorCheck:
    """An operator's expressions, in a plan with those of its neighbors.

    Args:
        expressions: operator → expressions that use it.
        name: the operator that is checked.
        engine: that computes the expressions.
    """

    def __init__(self, expressions: Expressions, name: str, engine: Wanted = "fused") -> None:
        names = list(expressions)
        first = names.index(name) // OPERATORS_IN_A_PLAN * OPERATORS_IN_A_PLAN
        group = [expressions[other] for other in names[first : first + OPERATORS_IN_A_PLAN]]
        self._nodes = expressions[name]
        self._extractor = _extractor(tuple(itertools.chain.from_iterable(group)), engine)
        self.roots = plan_of(self._nodes).roots
        """Columns that the operator's expressions read."""

    def check(self, batch: pa.RecordBatch) -> None:
        """Compare the operator's features of a batch of `roots`; the neighbors' columns are null."""
        for root in self._extractor.plan.roots:
            if root.name not in batch.schema.names:
                batch = batch.append_column(
                    root.name, pa.nulls(batch.num_rows, dtypes.arrow_type(root.dtype))
                )
        check(self._extractor, batch, self._nodes)
