"""Device extraction on a real GPU: the same checks as on the emulated device. `make test-gpu` runs them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.features import display_ads, rows_of
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.extract.extractor import Extractor
from tests.gpu.here import DRY, TARGET
from tests.ingest import device_checks as checks


def test_operators_equal_the_host() -> None:
    checks.operators_equal_the_host(TARGET, checks.ALL, exact=DRY)


@pytest.mark.parametrize("seed", range(3))
def test_random_dags_equal_the_host(seed: int) -> None:
    checks.random_dags_equal_the_host(TARGET, seed, exact=DRY)


def test_small_budgets_change_nothing() -> None:
    checks.small_budgets_change_nothing(TARGET, exact=DRY)


def test_a_full_pool_grows_and_nothing_is_cut() -> None:
    checks.a_full_pool_grows_and_nothing_is_cut(TARGET)


def test_a_row_with_too_many_values_fails_alone() -> None:
    checks.a_row_with_too_many_values_fails_alone(TARGET)


def test_both_targets_refuse_the_same_rows() -> None:
    checks.both_targets_refuse_the_same_rows(TARGET)


def test_statistics_equal_the_host() -> None:
    checks.statistics_equal_the_host(TARGET)


def test_one_launch_per_layer() -> None:
    checks.one_launch_per_layer(TARGET)


def test_one_wait_a_batch() -> None:
    checks.one_wait_a_batch(TARGET)


def test_batches_ahead_equal_calls() -> None:
    checks.batches_ahead_equal_calls(TARGET)


def test_nothing_is_allocated_after_the_first_batches() -> None:
    checks.nothing_is_allocated_after_the_first_batches(TARGET)


def test_a_dropped_flight_gives_its_memory_back() -> None:
    checks.a_dropped_flight_gives_its_memory_back(TARGET)


def test_features_stay_on_the_device() -> None:
    checks.features_stay_on_the_device(TARGET)


def test_an_empty_batch() -> None:
    checks.an_empty_batch(TARGET)


def test_calls_from_several_threads_overlap() -> None:
    pipeline = display_ads()
    device, host = DeviceExtractor(pipeline.plan, TARGET), Extractor(pipeline.plan)
    batches = [rows_of(pipeline, 4096, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for got, batch in zip(pool.map(device, batches), batches, strict=True):
            checks.assert_equal(got, host(batch), exact=DRY)
