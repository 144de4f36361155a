"""Device code of plans: it grows with functions and not with nodes, a change compiles one unit, and its grid
fills a GPU."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.features import display_ads, rows_of
from livectr.ingest import operators as op
from livectr.ingest.extract.device_code import (
    MOST_WEIGHT,
    PACK_KERNELS,
    PACK_SOURCE,
    POOL_WEIGHT,
    device_units,
    node_kernels,
    weight,
)
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.ingest.pipeline import load_pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.compiler import cached_cubin, cached_cubins
from livectr.kernels.runtime.device import EmulatedDevice
from tests.ingest.device_checks import ALL, assert_equal
from tests.ingest.operator_check import plan_of
from tests.ingest.operator_expressions import I64, L64, LTEXT, TEXT
from tests.ingest.random_plans import random_batch
from tests.kernel_budgets import ptxas_report, usages

WIDE = Path(__file__).parents[2] / "bench" / "featurebox" / "pipeline.py"
MULTIPROCESSORS = 132
"""Multiprocessors of an H100 and an H200."""


class Reversed(EmulatedDevice):
    """Blocks and threads run from the last to the first."""

    def __init__(self, source: str, kernels: tuple[str, ...]) -> None:
        super().__init__("#define LIVECTR_REVERSED\n" + source, kernels)


def text(name: str) -> Expr:
    return column(ColumnRef("t", name), "string")


def features(count: int) -> FeaturePlan:
    """Features of equal calls over other columns, with other constants and other arguments."""
    sparse: dict[str, Expr] = {}
    for i in range(count):
        words = op.split(op.lower(text(f"text{i}")), ", "[: 1 + i % 2])
        sparse |= {f"words{i}": words, f"last{i}": op.tail(words, i + 1)}
    return FeaturePlan(sparse, {f"n{i}": op.length(text(f"text{i}")) + i for i in range(count)})


def test_code_depends_on_functions_and_not_on_nodes() -> None:
    few, many = features(2), features(40)
    assert len(many.nodes) == 20 * len(few.nodes)
    assert device_units(few) == device_units(many)


def test_a_changed_feature_changes_one_unit() -> None:
    before = features(3)
    after = FeaturePlan(before.sparse, before.dense | {"new": op.starts_with(text("text0"), "a")})
    units = list(zip(device_units(before), device_units(after), strict=True))
    assert [old.kernels for old, new in units if old != new] == [("layer1",)]


def test_layers_are_launched_once_where_they_have_few_functions() -> None:
    for plan in (display_ads().plan, load_pipeline(WIDE).plan, features(40)):
        assert [kernel.layer for kernel in node_kernels(plan)] == list(range(1, len(plan.layers)))


def test_kernels_have_limited_numbers_of_functions() -> None:
    """All operators in one plan: a kernel's compilation takes longer than in proportion to its functions."""
    plan = plan_of([node for nodes in ALL.values() for node in nodes])
    kernels = node_kernels(plan)
    assert max(sum(map(weight, kernel.functions)) for kernel in kernels) < MOST_WEIGHT + POOL_WEIGHT
    computed = [node for node in plan.nodes if not node.is_root]
    assert sorted(map(id, computed)) == sorted(id(node) for kernel in kernels for node in kernel.nodes)


@pytest.mark.full  # 12 CPU seconds
def test_code_of_all_operators_is_small() -> None:
    """NVRTC's time follows the code: what many call is compiled once, and loops are not unrolled."""
    plan = plan_of([node for nodes in ALL.values() for node in nodes])
    cubins = cached_cubins([unit.source for unit in device_units(plan)], arch="sm_90")
    assert len(cubins) <= 14
    assert sum(path.stat().st_size for path in cubins) < 1_500 << 10


def test_packing_is_small_whatever_the_plan() -> None:
    assert cached_cubin(PACK_SOURCE, arch="sm_90").stat().st_size < 48 << 10
    assert device_units(features(40))[-1].kernels == PACK_KERNELS


def test_a_batch_of_4096_rows_fills_a_gpu_four_times() -> None:
    """Waves: blocks of the grid for each block that the multiprocessors hold at once, by ptxas's account."""
    plan, waves = load_pipeline(WIDE).plan, 0.0
    for kernel, unit in zip(node_kernels(plan), device_units(plan)[:-1], strict=True):
        held = usages(ptxas_report(unit.source))[kernel.name].blocks * MULTIPROCESSORS
        waves += len(kernel.nodes) * (4096 // THREADS) / held
    assert waves >= 4


def test_order_of_blocks_and_threads_does_not_matter() -> None:
    pipeline = display_ads()
    device, host = DeviceExtractor(pipeline.plan, Reversed), Extractor(pipeline.plan)
    for rows in (1, THREADS, 1000):
        batch = rows_of(pipeline, rows)
        assert_equal(device(batch), host(batch))


@pytest.mark.parametrize(("fields", "rows"), [(THREADS + 44, 2 * THREADS + 1), (2, THREADS * THREADS + 300)])
def test_prefix_sums_of_many_fields_and_many_blocks(fields: int, rows: int) -> None:
    """More fields, and more blocks of rows, than a thread block has threads."""
    sparse = {f"{i}": L64 + i if i % 2 else I64 * i for i in range(fields)}
    plan = FeaturePlan({"root": L64, "constant": op.where(I64 == I64, 7, 7), **sparse})
    batch = random_batch(random.Random(1), 600)
    batch = pa.Table.from_batches([batch] * (rows // 600 + 1)).combine_chunks().to_batches()[0].slice(0, rows)
    assert_equal(DeviceExtractor(plan, EmulatedDevice)(batch), Extractor(plan)(batch))


def test_a_row_that_fails_for_one_node_has_the_others_values() -> None:
    """Nodes of a layer run at the same time, so that none may see what another does."""
    plan = plan_of(
        [op.cross(L64, L64, L64, L64), L64 + 1, op.lower(LTEXT), op.lower(TEXT), op.split(TEXT, " ")]
    )
    batch = random_batch(random.Random(2), 20)
    longest = pa.array([[1] * 17 if row % 3 == 0 else [1] for row in range(20)], pa.list_(pa.int64()))
    place = batch.schema.names.index(L64.name)
    batch = batch.set_column(place, L64.name, longest)
    got, want = DeviceExtractor(plan, EmulatedDevice)(batch), Extractor(plan)(batch)
    assert np.flatnonzero(got.failed).tolist() == list(range(0, 20, 3))
    assert_equal(got, want)
