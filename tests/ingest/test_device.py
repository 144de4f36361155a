"""Device extraction on the emulated device: the kernels of a GPU, block by block and phase by phase."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.features import display_ads, rows_of
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.extract.extractor import Extractor
from livectr.kernels.errors import ConfigError
from livectr.kernels.runtime.device import EmulatedDevice, gpu_available
from tests.ingest import device_checks as checks


def test_operators_equal_the_host() -> None:
    checks.operators_equal_the_host(EmulatedDevice, checks.ALL, exact=True)


@pytest.mark.parametrize("seed", range(3))
def test_random_dags_equal_the_host(seed: int) -> None:
    checks.random_dags_equal_the_host(EmulatedDevice, seed, exact=True)


def test_small_budgets_change_nothing() -> None:
    checks.small_budgets_change_nothing(EmulatedDevice, exact=True)


def test_a_full_pool_grows_and_nothing_is_cut() -> None:
    checks.a_full_pool_grows_and_nothing_is_cut(EmulatedDevice)


def test_a_row_with_too_many_values_fails_alone() -> None:
    checks.a_row_with_too_many_values_fails_alone(EmulatedDevice)


def test_both_targets_refuse_the_same_rows() -> None:
    checks.both_targets_refuse_the_same_rows(EmulatedDevice)


def test_statistics_equal_the_host() -> None:
    checks.statistics_equal_the_host(EmulatedDevice)


def test_one_launch_per_layer() -> None:
    checks.one_launch_per_layer(EmulatedDevice)


def test_an_empty_batch() -> None:
    checks.an_empty_batch(EmulatedDevice)


def test_calls_from_several_threads_have_their_own_memory() -> None:
    pipeline = display_ads()
    device, host = DeviceExtractor(pipeline.plan, EmulatedDevice), Extractor(pipeline.plan)
    batches = [rows_of(pipeline, 400, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for got, batch in zip(pool.map(device, batches), batches, strict=True):
            checks.assert_equal(got, host(batch))


def test_without_a_gpu_one_sentence_says_so() -> None:
    if gpu_available():
        pytest.fail("this machine has a GPU: run make test-gpu")
    with pytest.raises(ConfigError, match=r"no GPU|needs CuPy"):
        DeviceExtractor(display_ads().plan)
