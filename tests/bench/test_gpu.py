"""The GPU's benchmark works before a GPU is lent: it runs on the emulated device, and its kernels compile."""

from __future__ import annotations

import pytest

from bench import gpu, gpu_images, gpu_plan, gpu_staging, gpu_step, gpu_tables, gpu_train
from bench.run import ROW
from livectr.ingest.extract.device_code import device_units
from livectr.kernels.gpu_table.device_store import table_source
from livectr.kernels.runtime.compiler import compile_cubin
from livectr.kernels.runtime.device import CudaDevice, EmulatedDevice
from livectr.system.errors import ConfigError
from tests.gpu_here import gpu_available


@pytest.mark.full
def test_every_figure_is_measured() -> None:
    rows = gpu.measure(EmulatedDevice, rows=700, repeats=2)
    assert all(set(row) == set(ROW) and float(str(row["ours"])) >= 0 for row in rows)
    figures = {row["figure"] for row in rows}
    assert {"kernel launches", "launches per batch", "staging", "feature extraction"} <= figures
    assert {"device table, lookup and gather", "tables of a training step"} <= figures
    loads = [row["workload"] for row in rows if row["figure"] == "device table, find"]
    assert [str(workload).split("load ")[1][:4] for workload in loads] == ["0.53", "0.78", "0.90", "0.90"]
    assert sum(str(row["figure"]).startswith("layer kernel") for row in rows) == 4
    assert {row["ours"] for row in rows if row["figure"] == "allocations after warm-up"} == {0.0}
    launched = next(row for row in rows if row["figure"] == "launches per batch")
    assert launched["met"], "a launch for each layer, however many operators"


@pytest.mark.full
def test_steps_are_measured_with_more_and_more_on_the_device() -> None:
    rows = gpu_step.ways(EmulatedDevice, "cpu", 60, 1)
    figures = [str(row["figure"]) for row in rows]
    assert figures[:-1] == [f"training step, {way.name}" for way in gpu_step.WAYS]
    assert [row["goal"] for row in rows] == [None, None, None, 10, 0.1]


@pytest.mark.full
def test_a_log_is_learned_alike_with_the_device_on_and_off() -> None:
    whole, apart = gpu_train.measure(EmulatedDevice, "cpu", small=True)
    assert float(str(whole["ours"])) > 0 and apart["ours"] == 0.0


def test_the_limit_of_pictures_is_known() -> None:
    """15.3 billion multiplications in the convolutions, as the paper's tables have it, and FC6."""
    assert gpu_images.multiplications(224) == 15_346_630_656 + 4096 * 25_088


def test_staging_is_measured_without_a_device() -> None:
    rate, written = gpu_staging.measure(700, 2)
    assert set(rate) == set(written) == set(ROW)
    assert float(str(rate["ours"])) > 0 and float(str(written["peer"])) > 0
    assert "700 rows" in str(rate["workload"])


def test_a_batch_of_200_features_asks_little_of_a_device() -> None:
    """A launch a layer and three that pack, a single wait, and nothing that is allocated."""
    assert gpu_plan.asked(batches=1) == gpu_plan.Asked(layers=6, launches=9, waits=1, allocations=0)


@pytest.mark.parametrize(
    "source",
    [
        gpu._EMPTY[CudaDevice],
        gpu._ALLOCATE_KERNEL[CudaDevice],
        *(unit.source for make in (gpu.fixed, gpu.strings) for unit in device_units(make(10, 2)[0])),
        table_source(gpu_tables.LAYOUT),
        table_source(gpu_tables.WIDE),
    ],
)
def test_its_kernels_compile_for_sm_90(source: str) -> None:
    assert compile_cubin(source).startswith(b"\x7fELF")


def test_without_a_gpu_it_says_so() -> None:
    if gpu_available():
        pytest.fail("this machine has a GPU: run make bench-gpu")
    with pytest.raises(ConfigError, match=r"no GPU|needs CuPy"):
        gpu.run(quick=True)
