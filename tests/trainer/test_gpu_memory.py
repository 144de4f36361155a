"""Default budgets of a GPU: the arithmetic, with a free memory that is made up."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from livectr.ingest.language.policies import TablePolicy
from livectr.ingest.plan.placement import place
from livectr.kernels.runtime.device import free_memory
from livectr.kernels.table.rows import row_layout
from livectr.models.configs import model_configs
from livectr.models.roles import row_segments
from livectr.system.byte_units import show_bytes
from livectr.system.errors import ConfigError
from livectr.trainer.options import TrainOptions
from livectr.trainer.tables.gpu_memory import (
    FEATURE_BATCHES,
    FEATURES_SHARE,
    RESERVE_BYTES,
    ROWS_SHARE,
    BatchSize,
    GpuMemory,
    row_bytes,
    with_gpu_budgets,
)
from livectr.trainer.tables.gpu_tables import gpu_tables
from tests.ranks import run_ranks
from tests.trainer.ad_logs import ad_pipeline

GIB = 1 << 30
PIPELINE = ad_pipeline()
LAYOUT = row_layout(row_segments(model_configs(PIPELINE), PIPELINE.features))
ON_GPU = TrainOptions("file:x", device="gpu", batch_size=4096)


@pytest.mark.parametrize("free", [4 * GIB, 80 * GIB, 139 * GIB])
@pytest.mark.parametrize("batch", [256, 4096, 65_536])
def test_the_parts_are_no_more_than_the_memory(free: int, batch: int) -> None:
    peak = place(PIPELINE.plan, budget_bytes=None, rows=batch).device_memory.peak
    memory = GpuMemory.of(free, peak, BatchSize.of(PIPELINE, batch), LAYOUT)
    parts = memory.features + memory.networks + memory.batches + memory.reserve
    assert parts + memory.rows * memory.row_bytes <= free < parts + (memory.rows + 1) * memory.row_bytes
    assert memory.rows * memory.row_bytes > free / 2 or free < 5 * GIB
    assert memory.reserve >= RESERVE_BYTES and memory.row_bytes == row_bytes(LAYOUT)


def test_more_examples_and_parameters_leave_less_to_rows() -> None:
    def rows(batch: int, parameters: int = 0) -> int:
        size = BatchSize.of(PIPELINE, batch)
        size = replace(size, parameters=size.parameters + parameters)
        return GpuMemory.of(80 * GIB, 10 << 20, size, LAYOUT).rows

    assert rows(1 << 18) < rows(1 << 16) < rows(1 << 12)
    gone = (rows(4096) - rows(4096, 10**9)) * row_bytes(LAYOUT)
    assert gone == pytest.approx(16e9, rel=1e-6)  # weights, gradients and two moments in fp32


def test_batch_sizes() -> None:
    """Nine fields, of which some are lists of eight keys; the networks are those that the step builds."""
    size = BatchSize.of(PIPELINE, 100)
    assert size.rows == 100 and size.cells == 100 * len(PIPELINE.fields) < size.keys
    configs = model_configs(PIPELINE)
    fields, dense = PIPELINE.plan.fields, PIPELINE.plan.dense_names
    models = [config.build(fields, fields, dense, True, 7) for config in configs.values()]
    assert size.parameters == sum(p.numel() for model in models for p in model.parameters())
    assert 0 < size.activations < size.parameters


def test_features_are_limited_where_they_would_take_more_than_a_part() -> None:
    def budget(free: int) -> int | None:
        return with_gpu_budgets(ON_GPU, PIPELINE, lambda: free).gpu_budget

    peak = place(PIPELINE.plan, budget_bytes=None, rows=4096).device_memory.peak
    assert budget(80 * GIB) is None
    little = int(FEATURE_BATCHES * peak / FEATURES_SHARE) - 1000
    assert budget(little) == int(FEATURES_SHARE * little) // FEATURE_BATCHES < peak


def test_a_small_gpu_keeps_a_part_for_rows() -> None:
    size = BatchSize.of(PIPELINE, 1 << 20)
    memory = GpuMemory.of(GIB, 100 << 20, size, LAYOUT)
    assert memory.networks + memory.batches + memory.reserve > GIB
    assert memory.rows == int(ROWS_SHARE * GIB / memory.row_bytes)


def test_one_line_tells_what_goes_where(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        options = with_gpu_budgets(ON_GPU, PIPELINE, lambda: 80 * GIB)
    rows = options.gpu_rows
    assert rows is not None and len(caplog.messages) == 1
    line = caplog.messages[0]
    assert line.startswith("GPU memory: 80.0 GiB free; at most ") and f"for {rows:,} rows" in line
    assert show_bytes(int(rows * row_bytes(LAYOUT))) in line


def test_settings_stay() -> None:
    given = replace(ON_GPU, gpu_rows=1_000, gpu_budget=1 << 30)
    assert with_gpu_budgets(given, PIPELINE, lambda: 80 * GIB) == given
    assert with_gpu_budgets(replace(given, gpu_rows=0), PIPELINE, lambda: 80 * GIB).gpu_rows == 0
    host = replace(ON_GPU, device="cpu")
    assert with_gpu_budgets(host, PIPELINE, free_memory) is host
    with pytest.raises(ConfigError, match="gpu_budget is"):
        with_gpu_budgets(replace(ON_GPU, gpu_budget=1), PIPELINE, lambda: 80 * GIB)
    with pytest.raises(ConfigError, match=r"no GPU|needs CuPy"):
        with_gpu_budgets(ON_GPU, PIPELINE, free_memory)


def test_auto_is_the_cpu_without_a_gpu() -> None:
    auto = replace(ON_GPU, device="auto", gpu_rows=5)
    assert with_gpu_budgets(auto, PIPELINE, free_memory, on_gpu=False) == replace(
        auto, device="cpu", gpu_rows=None
    )
    budgets = with_gpu_budgets(replace(auto, gpu_rows=None), PIPELINE, lambda: 80 * GIB)
    expected = with_gpu_budgets(ON_GPU, PIPELINE, lambda: 80 * GIB)
    assert budgets == replace(expected, device="auto") and gpu_tables(budgets) == gpu_tables(expected)
    admitting = replace(PIPELINE, policies=TablePolicy(admit_after=2))
    assert gpu_tables(with_gpu_budgets(auto, admitting, lambda: 80 * GIB)) is None


def test_ranks_on_a_gpu_divide_its_memory(tmp_path: Path) -> None:
    """Three processes on two GPUs; whichever allocates first, the others' budgets are the same."""
    run_ranks(3, "tests.trainer.sharing_worker", str(tmp_path))
