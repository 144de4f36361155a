"""Device extraction on the emulated device: the kernels of a GPU, block by block and phase by phase."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from bench.features import display_ads, rows_of
from livectr.ingest import operators as op
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.expr import ColumnRef, column
from livectr.ingest.plan.dag import FeaturePlan
from livectr.kernels.runtime.device import Bytes, EmulatedDevice
from livectr.system.errors import ConfigError
from tests.gpu_here import gpu_available
from tests.ingest import device_checks as checks
from tests.ingest.operator_expressions import F64, I64
from tests.ingest.random_plans import random_batch
from tests.kernels.pinned_device import PinnedDevice
from tests.tiers import few


def test_operators_equal_the_host() -> None:
    checks.operators_equal_the_host(EmulatedDevice, checks.ALL, exact=True)


@pytest.mark.parametrize("seed", few(range(3), 0))
def test_random_dags_equal_the_host(seed: int) -> None:
    checks.random_dags_equal_the_host(EmulatedDevice, seed, exact=True)


@pytest.mark.full
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


def test_one_wait_a_batch() -> None:
    checks.one_wait_a_batch(EmulatedDevice)


def test_batches_ahead_equal_calls() -> None:
    checks.batches_ahead_equal_calls(EmulatedDevice)


def test_nothing_is_allocated_after_the_first_batches() -> None:
    checks.nothing_is_allocated_after_the_first_batches(EmulatedDevice)


def test_a_dropped_flight_gives_its_memory_back() -> None:
    checks.a_dropped_flight_gives_its_memory_back(EmulatedDevice)


def test_features_stay_on_the_device() -> None:
    checks.features_stay_on_the_device(EmulatedDevice)


def test_an_empty_batch() -> None:
    checks.an_empty_batch(EmulatedDevice)


def test_calls_from_several_threads_have_their_own_memory() -> None:
    pipeline = display_ads()
    device, host = DeviceExtractor(pipeline.plan, EmulatedDevice), Extractor(pipeline.plan)
    batches = [rows_of(pipeline, 400, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for got, batch in zip(pool.map(device, batches), batches, strict=True):
            checks.assert_equal(got, host(batch))


def test_calls_from_several_threads_share_the_resources() -> None:
    """A word embedding of 64 KiB is on the device once, however many calls overlap."""
    uploads: list[int] = []

    class Noting(EmulatedDevice):
        def upload(self, address: int, source: Bytes) -> None:
            uploads.append(source.nbytes)
            super().upload(address, source)

    vectors = ([f"w{i}" for i in range(1024)], np.ones((1024, 16), np.float32))
    title = column(ColumnRef("t", "title"), "string")
    plan = FeaturePlan({"t": title}, {"v": op.word_embedding(op.split(title, " "), vectors)})
    device = DeviceExtractor(plan, Noting)
    batch = pa.record_batch({"t.title": ["w1 w2", "", "w3"]})
    contexts = [device._context() for _ in range(3)]  # as three calls at once
    assert len({id(context.device) for context in contexts}) == 3
    expected = Extractor(plan)(batch)
    for context in contexts:
        device._contexts.append(context)
        checks.assert_equal(device(batch), expected)
        device._contexts.remove(context)
    assert uploads.count(vectors[1].nbytes) == 1


def test_copies_of_batches_are_pinned() -> None:
    """Resources are copied once, at the start, and need not be."""
    features = FeaturePlan(
        {"b": op.quantile_bins(F64, 4, fit_rows=50)}, {"z": op.zscore(F64), "m": op.minmax(I64)}
    )
    device, host = DeviceExtractor(features, PinnedDevice), Extractor(features)
    state, rng = Statistics(features), random.Random(4)
    for _ in range(3):
        batch = random_batch(rng, 100)
        want = host(batch, state)
        checks.assert_equal(device(batch, state), want, exact=False)
        state = state.update(want.observed)


def test_without_a_gpu_one_sentence_says_so() -> None:
    if gpu_available():
        pytest.fail("this machine has a GPU: run make test-gpu")
    with pytest.raises(ConfigError, match=r"no GPU|needs CuPy"):
        DeviceExtractor(display_ads().plan)
