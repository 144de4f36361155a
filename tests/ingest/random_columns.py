"""Hypothesis strategies for batches of columns of every type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from tests.ingest.operator_expressions import TS

NUMBER = {
    "int64": st.one_of(st.integers(-3, 70), st.integers(-(2**63), 2**63 - 1)),
    "int32": st.one_of(st.integers(-3, 70), st.integers(-(2**31), 2**31 - 1)),
    "float32": st.one_of(st.integers(-3, 70).map(float), st.floats(width=32)),
    "float64": st.one_of(st.integers(-3, 70).map(float), st.floats(width=64)),
    "bool": st.booleans(),
    "string": st.text(st.sampled_from("aB zÄß,Σжあ😀\x00\\\"'"), max_size=12)
    | st.text(st.sampled_from("aBZ@[ ,"), max_size=40),
    "binary": st.binary(max_size=12),
}


@st.composite
def batches(
    draw: st.DrawFn, roots: tuple[Expr, ...], special: Mapping[str, st.SearchStrategy[Any]] | None = None
) -> pa.RecordBatch:
    """Batch of the roots, sometimes a slice of a larger batch (offsets that do not start at 0).

    special: values of some columns, by name.
    """
    rows = draw(st.integers(1, 12))
    arrays = []
    for node in roots:
        value = (special or {}).get(node.name, NUMBER[dtypes.element(node.dtype)])
        if node is TS:
            value = st.integers(-(10**13), 10**13)
        if dtypes.is_list(node.dtype):
            value = st.lists(st.one_of(st.none(), value), max_size=6)
        values = draw(st.lists(st.one_of(st.none(), value, value), min_size=rows, max_size=rows))
        arrays.append(pa.array(values, dtypes.arrow_type(node.dtype)))
    batch = pa.RecordBatch.from_arrays(arrays, names=[node.name for node in roots])
    start = draw(st.integers(0, rows - 1))
    return batch.slice(start, draw(st.integers(0, rows - start)))
