"""Running statistics: each operator against the values of all earlier batches, in NumPy and plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest import operators as op
from livectr.ingest.extract.engines import Wanted
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics, name_of
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.operators.statistics import CountMinSketch, Moments, Quantiles
from livectr.ingest.plan.dag import FeaturePlan
from livectr.system.errors import ConfigError, MismatchError
from tests.ingest.device_checks import compiles_for_sm_90
from tests.ingest.operator_check import ENGINES
from tests.ingest.random_columns import NUMBER
from tests.ingest.reference import evaluate
from tests.ingest.statistics_expressions import (
    EXPRESSIONS,
    F64,
    I64,
    L64,
    STATISTICS,
    TEXT,
    Past,
)
from tests.tiers import examples, few

SMALL = {"float32": st.floats(-1e6, 1e6, width=32), "float64": st.floats(-1e6, 1e6)}
VALUES = {"int64": NUMBER["int64"], "text": NUMBER["string"], "bool": st.booleans(), "int32": NUMBER["int32"]}


@cache
def extractor_of(name: str, engine: Wanted) -> Extractor:
    return Extractor(plan_of(*EXPRESSIONS[name]), engine=engine)


def plan_of(*nodes: Expr) -> FeaturePlan:
    return FeaturePlan({}, {f"d{i}": node for i, node in enumerate(nodes)})


@st.composite
def streams(draw: st.DrawFn, roots: tuple[Expr, ...], values: dict[str, Any]) -> list[pa.RecordBatch]:
    """A few batches of the roots, with nulls; some of no rows."""
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        rows = draw(st.integers(0, 8))
        arrays = []
        for node in roots:
            one = values[node.ref.column if node.ref.column in values else node.dtype]
            drawn = draw(st.lists(st.one_of(st.none(), one, one), min_size=rows, max_size=rows))
            arrays.append(pa.array(drawn, dtypes.arrow_type(node.dtype)))
        batches.append(pa.RecordBatch.from_arrays(arrays, names=[node.name for node in roots]))
    return batches


@pytest.mark.parametrize(
    ("name", "engine"),
    few(itertools.product(STATISTICS, ENGINES), ("zscore", "fused"), *((n, "calls") for n in STATISTICS)),
)
def test_a_batch_knows_the_batches_before_it(name: str, engine: Wanted) -> None:
    """A batch's own values and later values do not change its features."""
    reference, nodes = STATISTICS[name]
    extractor = extractor_of(name, engine)

    @given(streams(extractor.plan.roots, VALUES | (SMALL if name == "zscore" else NUMBER)))
    @examples(60, tried=15)
    def holds(batches: list[pa.RecordBatch]) -> None:
        statistics = Statistics(extractor.plan)
        past: dict[int, Past] = {i: [] for i in range(len(nodes))}
        for batch in batches:
            features = extractor(batch, statistics)
            statistics = statistics.update(features.observed)
            for i, node in enumerate(nodes):
                x = evaluate(node.inputs[0], batch).values
                with np.errstate(all="ignore"):
                    want = reference(node, past[i], x).astype(np.float32)
                want = np.where(np.isfinite(want), want, np.float32(0))
                # sums are taken batch by batch, so the mean and spread differ in their last bits
                close = dict(rtol=1e-4, atol=1e-4) if name == "zscore" else dict(rtol=0, atol=0)
                np.testing.assert_allclose(features.dense[:, i], want, **close, err_msg=str(node))
                past[i] += x.tolist()

    holds()


def of(values: Any, node: Expr) -> pa.RecordBatch:
    (base,) = FeaturePlan({}, {"x": node}).roots
    return pa.RecordBatch.from_arrays([pa.array(values, dtypes.arrow_type(base.dtype))], names=[base.name])


def test_equal_values_have_no_spread() -> None:
    """A rounded mean would make 0.1 differ from 0.1, and noise of the difference."""
    extractor = Extractor(plan_of(op.zscore(F64)))
    statistics = Statistics(extractor.plan)
    for rows in (4096, 777, 1):
        batch = of([0.1] * rows, op.zscore(F64))
        features = extractor(batch, statistics)
        assert not features.dense.any()
        statistics = statistics.update(features.observed)
    assert statistics.arrays[0].tolist() == [4874, 0.1, 0]


def test_moments_of_a_long_stream() -> None:
    """Updates batch by batch equal a single computation, far from zero."""
    values = np.random.default_rng(0).normal(1e6, 1e-2, 100_000)
    state = Moments().initial()
    for part in np.split(values, 50):
        state = Moments().update(state, part)
    assert state[0] == len(values)
    np.testing.assert_allclose(
        [state[1], np.sqrt(state[2] / state[0])], [values.mean(), values.std()], rtol=1e-9
    )


def test_what_is_not_finite_teaches_nothing() -> None:
    node = op.zscore(F64)
    extractor = Extractor(plan_of(node, op.minmax(F64), op.quantile_bins(F64, 2, 2)))
    start = Statistics(extractor.plan)
    batch = of([float("nan"), float("inf"), -float("inf"), 1e200], node)
    after = start.update(extractor(batch, start).observed)
    assert [a.tolist() for a in after.arrays] == [a.tolist() for a in start.arrays]


def test_bounds_are_known_from_the_first_values_and_do_not_depend_on_batches() -> None:
    values = np.random.default_rng(0).lognormal(0, 8, 300)
    whole = Quantiles(10, 200)
    for seen in (9, 12, 24, 25, 99, 100, 199, 200, 300):
        state = whole.update(whole.initial(), values[:seen])
        parts = whole.initial()
        for start in range(0, seen, 7):
            parts = whole.update(parts, values[start : min(start + 7, seen)])
        assert state.tobytes() == parts.tobytes(), seen
        fitted = next((m for m in (200, 100, 50, 25, 12) if m <= seen), 0)
        want = np.quantile(values[:fitted], np.arange(1, 10) / 10) if fitted else np.zeros(0)
        assert state[1 : 1 + int(state[0])].tolist() == list(want), seen
    assert len(state) == 10  # the values are no longer kept


def test_a_state_that_has_values_alone_goes_on() -> None:
    """Checkpoints that hold a 0 and the values seen: the bounds follow with the next batch."""
    values = np.arange(60.0)
    fresh = Quantiles(4, 100).update(np.zeros(1), values)
    assert Quantiles(4, 100).update(np.concatenate([[0.0], values]), values[:0]).tobytes() == fresh.tobytes()


def test_bounds_are_frozen() -> None:
    node = op.quantile_bins(I64, 4, 100)
    extractor = Extractor(plan_of(node))
    statistics = Statistics(extractor.plan)
    statistics = statistics.update(extractor(of(range(1, 201), node), statistics).observed)
    assert statistics.arrays[0].tolist() == [3, 25.75, 50.5, 75.25]  # of the first 100
    again = statistics.update(extractor(of(range(1000), node), statistics).observed)
    assert again.arrays[0] is statistics.arrays[0]
    assert extractor(of([-5, 25, 26, 75, 76, 900], node), again).dense[:, 0].tolist() == [0, 0, 1, 2, 3, 3]


@given(st.lists(st.integers(-5, 60), max_size=300))
def test_a_sketch_is_never_too_low(values: list[int]) -> None:
    node = op.frequency(I64, width=8, depth=2)
    extractor = Extractor(plan_of(node))
    statistics = Statistics(extractor.plan)
    statistics = statistics.update(extractor(of(values, node), statistics).observed)
    found = extractor(of(range(-5, 61), node), statistics).dense[:, 0]
    assert (found >= [values.count(x) for x in range(-5, 61)]).all()
    assert (found <= len(values)).all()


def test_the_error_of_a_sketch_keeps_its_bound() -> None:
    """Theorem 1 of the paper: at most e/width · N too high, except for a share e^-depth."""
    rng = np.random.default_rng(1)
    keys = rng.zipf(1.3, 200_000).astype(np.int64)
    sketch = CountMinSketch(depth=4, width=1 << 10)
    counts = sketch.update(sketch.initial(), keys)
    requested, true = np.unique(keys, return_counts=True)
    node = op.frequency(I64, width=1 << 10, depth=4)
    extractor = Extractor(plan_of(node))
    statistics = Statistics(extractor.plan).load({name_of(node): counts})
    found = extractor(of(requested, node), statistics).dense[:, 0]
    too_high = found - true.astype(np.float32)
    assert (too_high >= 0).all() and len(requested) > 5_000
    assert (too_high > np.e / (1 << 10) * len(keys)).mean() <= np.exp(-4)


def test_a_state_is_a_moment() -> None:
    """A later update changes neither the state nor the features computed with it."""
    extractor = extractor_of("frequency", "calls")
    batch = pa.RecordBatch.from_arrays(
        [pa.array([None] * 5, dtypes.arrow_type(node.dtype)) for node in extractor.plan.roots],
        names=[node.name for node in extractor.plan.roots],
    )
    first = Statistics(extractor.plan)
    second = first.update(extractor(batch, first).observed)
    assert not extractor(batch, first).dense.any()
    assert (extractor(batch, second).dense == 5).all()
    assert (extractor(batch, None).dense == 0).all()
    with pytest.raises(ValueError, match="read-only"):
        second.arrays[0][0] = 1


def test_state_survives_and_belongs_to_its_pipeline() -> None:
    nodes = [op.zscore(F64), op.quantile_bins(F64, 3, 5), op.frequency(TEXT)]
    plan = FeaturePlan({"t": nodes[2]}, {"z": nodes[0], "q": nodes[1]})
    batch = pa.RecordBatch.from_pydict({"t.float64": [1.0, 2, 4, 8, 16, 32], "t.text": list("aabbäc")})
    extractor = Extractor(plan)
    statistics = Statistics(plan).update(extractor(batch).observed)
    assert sorted(statistics.state()) == sorted(map(name_of, plan.statistics))
    assert all(name.split("-")[0] in EXPRESSIONS for name in statistics.state())
    again = Statistics(plan).load({**statistics.state(), "zscore-ffff": np.zeros(3)})
    assert [a.tobytes() for a in again.arrays] == [a.tobytes() for a in statistics.arrays]
    part = plan_of(nodes[1], nodes[0])
    assert {k: v.tobytes() for k, v in statistics.of(part).state().items()} == {
        name: statistics.state()[name].tobytes() for name in map(name_of, part.statistics)
    }
    with pytest.raises(MismatchError, match=r"statistics of zscore\(t.float64\).*another pipeline"):
        Statistics(plan).load({})
    with pytest.raises(MismatchError, match="frequency"):
        Statistics(plan).load({name: array.astype(np.float64) for name, array in statistics.state().items()})
    # other parameters are another statistic
    assert op.quantile_bins(F64, 3, 5) is nodes[1] and op.quantile_bins(F64, 3, 6) is not nodes[1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: op.zscore(TEXT), r"zscore needs a number, but t.text is string"),
        (lambda: op.zscore(L64), r"zscore needs one value per row, but t.l64 is list<int64>"),
        (lambda: op.minmax(L64), r"minmax needs one value per row, but t.l64 is list<int64>"),
        (lambda: op.frequency(L64), r"frequency needs one value per row, but t.l64 is list<int64>"),
        (lambda: op.frequency(F64), r"frequency needs an integer.*but t.float64 is float64"),
        (
            lambda: op.quantile_bins(L64, 4),
            r"quantile_bins needs one value per row, but t.l64 is list<int64>",
        ),
        (lambda: op.minmax(3.5), r"minmax learns from a column, but 3.5 is a constant"),
        (lambda: op.quantile_bins(F64, 1), r"quantile_bins\(t.float64\): n=1 buckets"),
        (lambda: op.quantile_bins(F64, 8, 7), r"n=8 buckets of fit_rows=7"),
        (lambda: op.frequency(I64, width=100), r"width=100 must be a power of two"),
        (lambda: op.frequency(I64, width=1 << 24, depth=2), r"product at most 16777216"),
    ],
)
def test_mistakes_are_told_when_the_pipeline_is_built(build: Callable[[], Expr], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_it_compiles_for_a_gpu() -> None:
    plan = plan_of(*[node for nodes in EXPRESSIONS.values() for node in nodes])
    assert compiles_for_sm_90(plan)
