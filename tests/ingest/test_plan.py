"""Plans: layers, random DAGs against node-by-node evaluation, Arrow corner cases, threads, the GPU's
compiler."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.features import display_ads, rows_of
from livectr.ingest import operators as op
from livectr.ingest.extract.device_code import device_units
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.ingest.pipeline import load_pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.system.errors import ConfigError
from tests.ingest.device_checks import compiles_for_sm_90
from tests.ingest.operator_check import check, plan_of
from tests.ingest.operator_expressions import EXPRESSIONS, L64, ROOTS
from tests.ingest.random_plans import random_batch, random_dag
from tests.kernel_budgets import LAYER_BUDGET, PIPELINE_BUDGETS, over_budget, ptxas_report, usages
from tests.tiers import examples, few

ROOT = Path(__file__).parents[2]
ROOT_A, ROOT_S = column(ColumnRef("t", "a"), "int64"), column(ColumnRef("t", "s"), "string")
ROOT_L = column(ColumnRef("t", "l"), "list<string>")


def equal(a: Features, b: Features) -> bool:
    return all(
        np.array_equal(x, y) for x, y in ((a.offsets, b.offsets), (a.keys, b.keys), (a.dense, b.dense))
    )


@given(st.integers(0, 2**32))
@examples(3)
def test_random_dag_equals_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    nodes = random_dag(rng, 40)
    sparse = {f"s{i}": node for i, node in enumerate(nodes) if "float" not in node.dtype}
    dense = {f"d{i}": node for i, node in enumerate(nodes) if node.dtype in dtypes.FIXED}
    extractor = Extractor(FeaturePlan(sparse, dense))
    for rows in (1, 7, 40):
        check(extractor, random_batch(rng, rows))


def test_layers_have_no_dependencies_inside() -> None:
    plan = display_ads().plan
    for number, layer in enumerate(plan.layers):
        assert all(node.layer == number for node in layer)
        assert all(source.layer < number for node in layer for source in node.inputs)
    assert [node for layer in plan.layers for node in layer] == list(plan.nodes)
    assert len({id(node) for node in plan.nodes}) == len(plan.nodes)


def test_fingerprint_is_of_what_is_computed() -> None:
    prints = {
        FeaturePlan(sparse, dense).fingerprint
        for sparse, dense in (
            ({"a": ROOT_A}, {}),
            ({"b": ROOT_A}, {}),
            ({"a": ROOT_A}, {"d": ROOT_A}),
            ({"a": ROOT_A + 1}, {}),
            ({"a": ROOT_A, "s": ROOT_S}, {}),
            ({"s": ROOT_S, "a": ROOT_A}, {}),
            ({"a": op.fill_null(ROOT_A, 1)}, {}),
        )
    }
    assert len(prints) == 7
    assert FeaturePlan({"a": ROOT_A}).fingerprint == FeaturePlan({"a": ROOT_A}).fingerprint


@pytest.mark.parametrize(
    ("sparse", "dense", "message"),
    [
        ({"x": ROOT_A * 0.5}, {}, "sparse field 'x': .* is float64; make it discrete"),
        ({"x": 3}, {}, "sparse field 'x' is 3, not an expression"),
        ({}, {"x": ROOT_S}, "dense feature 'x': t.s is string; a dense feature is one number per row"),
        ({}, {"x": ROOT_L}, "dense feature 'x': t.l is list<string>"),
        ({}, {"x": "price"}, "dense feature 'x' is 'price', not an expression"),
    ],
)
def test_wrong_outputs(sparse: dict[str, Expr], dense: dict[str, Expr], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeaturePlan(sparse, dense)


class TestBatches:
    plan = FeaturePlan({"a": ROOT_A, "s": op.lower(ROOT_S), "l": ROOT_L}, {"n": op.length(ROOT_L)})

    def test_other_arrow_types_are_cast(self) -> None:
        plain = pa.record_batch({"t.a": pa.array([1, 2]), "t.s": ["A", "b"], "t.l": [["x"], []]})
        other = pa.record_batch(
            {
                "more": pa.array([0, 0]),
                "t.l": pa.array([["x"], []], pa.large_list(pa.large_string())),
                "t.s": pa.array(["A", "b"]).dictionary_encode(),
                "t.a": pa.array([1, 2], pa.uint8()),
            }
        )
        extractor = Extractor(self.plan)
        assert equal(extractor(plain), extractor(other)) and equal(extractor(plain), extractor(plain))

    def test_columns_of_nulls_and_no_rows(self) -> None:
        extractor = Extractor(self.plan)
        nulls = extractor(pa.record_batch({name: pa.nulls(3) for name in ("t.a", "t.s", "t.l")}))
        assert nulls.lengths.tolist() == [[1] * 3, [1] * 3, [0] * 3] and not nulls.dense.any()
        none = extractor(pa.record_batch({name: pa.nulls(0) for name in ("t.a", "t.s", "t.l")}))
        assert none.rows == 0 and none.dense.shape == (0, 1) and len(none.offsets) == 1

    def test_hidden_values_under_nulls_do_not_leak(self) -> None:
        text = pa.array(["secret", "b"])
        hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), *text.buffers()[1:]])
        items = pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), pa.array(["x", "y"]))
        lists = pa.Array.from_buffers(
            items.type, 2, [pa.py_buffer(b"\x02"), items.buffers()[1]], children=[items.values]
        )
        shown = {
            "t.a": pa.array([1, 2]),
            "t.s": pa.array([None, "b"]),
            "t.l": pa.array([None, []], items.type),
        }
        extractor = Extractor(self.plan)
        want = extractor(pa.record_batch(shown))
        assert equal(extractor(pa.record_batch({**shown, "t.s": hidden, "t.l": lists})), want)

    def test_slices_equal_copies(self) -> None:
        rng = random.Random(5)
        batch = random_batch(rng, 50)
        extractor = Extractor(FeaturePlan({f"{i}": r for i, r in enumerate(ROOTS) if "float" not in r.dtype}))
        for start, count in ((0, 50), (1, 49), (9, 1), (13, 20)):
            want = extractor(batch.take(pa.array(range(start, start + count))))
            assert equal(extractor(batch.slice(start, count)), want)
            assert equal(extractor(batch).take(range(start, start + count)), want)

    @pytest.mark.parametrize("nulls", ["nowhere", "in the rows", "in the dictionary", "in both"])
    def test_encoded_columns_equal_plain_ones(self, nulls: str) -> None:
        rng = random.Random(6)
        extractor = Extractor(FeaturePlan({f"{i}": r for i, r in enumerate(ROOTS) if "float" not in r.dtype}))
        batch, encoded, plain = random_batch(rng, 60), {}, {}
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if nulls not in ("in the dictionary", "in both"):
                values = values.drop_null()
            values = values.slice(1)
            rows: list[int | None] = [rng.randrange(len(values)) for _ in range(600)]
            if nulls in ("in the rows", "in both"):
                rows[::7] = [None] * len(rows[::7])
            index = pa.array(rows, pa.int32())
            encoded[name] = pa.DictionaryArray.from_arrays(index, values)
            plain[name] = values.take(index)
        want = extractor(pa.record_batch(plain))
        assert equal(extractor(pa.record_batch(encoded)), want)
        assert equal(extractor(pa.record_batch(encoded).slice(3, 580)), want.take(range(3, 583)))

    def test_memory_grows_once(self) -> None:
        extractor = Extractor(FeaturePlan({"x": op.cross(ROOT_L, ROOT_L)}))
        batch = pa.record_batch({"t.l": [[str(i) for i in range(200)]] * 2})
        want = extractor(batch)
        grown = extractor.reruns
        assert grown > 0
        assert equal(extractor(batch), want) and extractor.reruns == grown

    def test_missing_and_wrong_columns_are_named(self) -> None:
        extractor = Extractor(self.plan)
        with pytest.raises(ConfigError, match=r"the batch has no column t.l; it has t.a, t.s"):
            extractor(pa.record_batch({"t.a": pa.array([1]), "t.s": ["x"]}))
        with pytest.raises(ConfigError, match=r"column t.a is string, not int64"):
            extractor(pa.record_batch({"t.a": ["one"], "t.s": ["x"], "t.l": [["x"]]}))

    def test_a_row_with_too_many_values_fails_alone(self) -> None:
        items = column(ColumnRef("t", "items"), "list<int64>")
        product = op.cross(items, items, items, items)
        extractor = Extractor(FeaturePlan({"all": product, "n": op.length(items)}))
        batch = pa.record_batch({"t.items": [list(range(300)), [1, 2], list(range(16))]})
        features = extractor(batch)
        assert features.failed.tolist() == [True, False, False]
        assert features.lengths[0].tolist() == [0, 16, 16**4]
        assert features.field(1)[1].tolist() == [300, 2, 16]

    def test_numbers_that_are_not_finite_become_zero_and_are_counted(self) -> None:
        extractor = Extractor(FeaturePlan({}, {"x": column(ColumnRef("t", "x"), "float64")}))
        values = [1.5, float("nan"), float("inf"), -float("inf"), 1e300]
        features = extractor(pa.record_batch({"t.x": values}))
        assert features.dense.ravel().tolist() == [1.5, 0, 0, 0, 0] and extractor.replaced == 4


def test_threads_share_an_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = display_ads()
    extractor = Extractor(pipeline.plan)
    batches = [rows_of(pipeline, rows, seed=rows) for rows in (1, 5, 37, 400, 3000)]
    want = [extractor(batch) for batch in batches]
    order = [random.Random(0).randrange(len(batches)) for _ in range(200)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda index: extractor(batches[index]), order))
    assert all(equal(result, want[index]) for index, result in zip(order, results, strict=True))
    assert len(extractor._engines.now().contexts) <= 9


def test_rows_are_independent_of_the_batch() -> None:
    """Serving sees other batches than training, so a row's features must not depend on its neighbours."""
    pipeline = display_ads()
    extractor = Extractor(pipeline.plan)
    batch = rows_of(pipeline, 3000)
    parts = [extractor(batch.slice(start, 700)) for start in range(0, 3000, 700)]
    assert equal(Features.concat(parts), extractor(batch))


def test_blocks_do_not_share_memory_of_outputs() -> None:
    """More blocks than threads, so that threads reuse their memory before the outputs are packed."""
    nodes = [node for name in EXPRESSIONS for node in EXPRESSIONS[name] if "float" not in node.dtype]
    extractor = Extractor(FeaturePlan({f"{index}": node for index, node in enumerate(nodes)}))
    rows, block = 12_000, 500
    batch = random_batch(random.Random(6), rows)
    whole = extractor(batch)
    assert equal(Features.concat([extractor(batch.slice(at, block)) for at in range(0, rows, block)]), whole)
    field = next(index for index, node in enumerate(nodes) if node is L64)
    want = [item or 0 for item in batch.column(L64.name).flatten().to_pylist()]
    assert whole.field(field)[1].tolist() == want


@pytest.mark.parametrize("name", few(EXPRESSIONS, *list(EXPRESSIONS)[3::20]))
def test_device_code_compiles_for_sm_90(name: str) -> None:
    """NVRTC needs over a second for each; the examples' pipelines, below, have many of them."""
    assert compiles_for_sm_90(plan_of(EXPRESSIONS[name]))


def test_device_code_of_display_ads_compiles_for_sm_90() -> None:
    assert compiles_for_sm_90(display_ads().plan)


def test_a_vector_is_as_many_dense_numbers() -> None:
    vectors = (["ad", "shoe"], np.array([[1, 2, 3], [3, 4, 6]], np.float32))
    title = column(ColumnRef("t", "title"), "string")
    plan = FeaturePlan(
        {"title": title}, {"n": op.length(title), "v": op.word_embedding(op.split(title, " "), vectors)}
    )
    assert plan.dense_names == ("n", "v.0", "v.1", "v.2")
    features = Extractor(plan)(pa.record_batch({"t.title": ["ad shoe", "", "shoe x"]}))
    np.testing.assert_array_equal(features.dense, [[7, 2, 3, 4.5], [0, 0, 0, 0], [6, 3, 4, 6]])


BENCHMARK = pytest.param("../bench/featurebox", marks=pytest.mark.full)  # NVRTC needs 40 CPU seconds


@pytest.mark.parametrize(
    "folder", [*few(["avazu", "criteo", "display_ads", "open_bandit"], "display_ads"), BENCHMARK]
)
def test_the_kernels_of_every_pipeline_compile_for_sm_90_within_their_budget(folder: str) -> None:
    """A kernel per layer and three that pack, of the examples and of the 200 features of the benchmark."""
    plan = load_pipeline(ROOT / "examples" / folder / "pipeline.py").plan
    units = device_units(plan)
    report = "\n".join(ptxas_report(unit.source) for unit in units)
    assert usages(report).keys() == {kernel for unit in units for kernel in unit.kernels}
    assert over_budget(report, PIPELINE_BUDGETS.get(Path(folder).name, {}), LAYER_BUDGET) == []
