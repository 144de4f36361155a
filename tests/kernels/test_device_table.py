"""DeviceTable and its cache on the emulated device, and compiled for a GPU; tests/gpu runs the same there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from livectr.kernels.gpu_table import gpu_cache
from livectr.kernels.gpu_table.device_store import HEADER_BYTES, KERNELS, Slabs, table_source
from livectr.kernels.gpu_table.device_table import DeviceTable
from livectr.kernels.gpu_table.gpu_cache import CachedFields, GpuCache
from livectr.kernels.runtime import device_memory
from livectr.kernels.runtime.device import EmulatedDevice
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment, Values
from livectr.kernels.table.table import DynamicTable
from livectr.system.errors import ConfigError
from tests.gpu_here import gpu_available
from tests.kernel_budgets import TABLE_BUDGETS, over_budget, ptxas_report, usages
from tests.kernels import device_table_checks as checks
from tests.kernels.pinned_device import PinnedDevice
from tests.kernels.queued_device import QueuedDevice
from tests.kernels.ragged_fields import tables

HALF = RowLayout((Segment("v", 16, AdaGrad()),), "bf16")
WIDE = RowLayout((Segment("v", 64, AdaGrad(), 0.01),))

TestDeviceTableIsADict = checks.table_is_a_dict(EmulatedDevice, 20)
TestReversedDeviceTableIsADict = checks.table_is_a_dict(checks.reversed_device, 5)


@pytest.mark.parametrize("values", ["fp32", "bf16", "fp16"])
def test_equals_the_host_table(values: Values) -> None:
    checks.equals_the_host_table(EmulatedDevice, values)


def test_grows_at_a_load_of_nine_tenths() -> None:
    checks.grows_at_a_load_of_nine_tenths(EmulatedDevice, 30_000)


def test_erased_keys_leave_room() -> None:
    checks.erased_keys_leave_room(EmulatedDevice)


def test_same_bits_in_any_order_of_threads() -> None:
    checks.same_bits_in_any_order(EmulatedDevice, checks.reversed_device)


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("budget_rows", [700, 1_100, 10_000])
def test_cached_training_equals_the_host(budget_rows: int, prefetch: bool) -> None:
    cache = checks.cached_training_equals_the_host(EmulatedDevice, budget_rows, prefetch=prefetch)
    assert (cache.evicted > 0) == (budget_rows < 10_000)
    assert 0 < cache.written_back <= cache.evicted or budget_rows == 10_000
    assert cache.hits > 0 and (cache.prefetched > 0) == (prefetch and budget_rows < 10_000)


def test_cached_training_equals_the_host_in_blocks_and_reversed() -> None:
    checks.cached_training_equals_the_host(checks.reversed_device, 800, prefetch=True, grouped=True)


@pytest.mark.parametrize("prefetch", [False, True])
def test_keys_may_be_on_the_device(prefetch: bool) -> None:
    checks.cached_training_equals_the_host(EmulatedDevice, 700, prefetch=prefetch, given=torch.from_numpy)
    front = CachedFields(GpuCache(tables(), budget_rows=9, target=EmulatedDevice), [("ad", "ad")])
    keys, offsets = torch.arange(2), torch.arange(3)
    with pytest.raises(ValueError, match=r"expected int32 of shape \(3,\), not torch.int64 of \(3,\)"):
        front.forward(offsets, keys, 2)


@pytest.mark.parametrize(("prefetch", "track"), [(False, False), (True, False), (True, True)])
def test_a_step_waits_once(prefetch: bool, track: bool) -> None:
    checks.steps_wait_and_allocate_little(EmulatedDevice, prefetch=prefetch, track=track)


def test_evictions_are_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cache, "PIECE_ROWS", 40)
    checks.evictions_are_pieces(EmulatedDevice, 40)


def test_the_least_recently_used_rows_leave() -> None:
    checks.the_least_recently_used_rows_leave(EmulatedDevice)


@pytest.mark.parametrize("budget_rows", [700, 10_000])
def test_nothing_is_read_before_the_wait(budget_rows: int) -> None:
    checks.cached_training_equals_the_host(QueuedDevice, budget_rows, prefetch=True)


def test_a_queue_that_runs_late_changes_nothing() -> None:
    checks.equals_the_host_table(QueuedDevice, rounds=3, size=200)
    checks.uses_and_erasures_reach_the_host(QueuedDevice)
    checks.a_cache_can_be_dropped(QueuedDevice)
    checks.the_least_recently_used_rows_leave(QueuedDevice)


def test_copies_are_pinned() -> None:
    checks.cached_training_equals_the_host(PinnedDevice, 700, prefetch=True)
    checks.equals_the_host_table(PinnedDevice, "bf16", rounds=3, size=200)


def test_large_downloads_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory stays with the process, and an export has all rows."""
    monkeypatch.setattr(device_memory, "PINNED_BYTES", 1 << 10)
    table = DeviceTable(checks.LAYOUT, ["t"], seed=1, target=PinnedDevice)
    with pytest.raises(AssertionError, match="8000 bytes would go by way of pageable memory"):
        table.find(np.arange(2_000))
    assert len(table.find(np.arange(200))) == 200


def test_a_cache_can_be_dropped() -> None:
    checks.a_cache_can_be_dropped(EmulatedDevice)


def test_uses_and_erasures_reach_the_host() -> None:
    checks.uses_and_erasures_reach_the_host(EmulatedDevice)


def test_wrong_calls_are_told() -> None:
    checks.wrong_calls_are_told(EmulatedDevice)
    with pytest.raises(ConfigError, match="at least 1 row"):
        GpuCache({"t": DynamicTable(checks.LAYOUT, name="t", seed=1)}, budget_rows=0, target=EmulatedDevice)
    with pytest.raises(ValueError, match="one row layout"):
        GpuCache({}, budget_rows=1, target=EmulatedDevice)


def test_without_a_gpu_it_says_so() -> None:
    if gpu_available():
        pytest.fail("this machine has a GPU: run make test-gpu")
    with pytest.raises(ConfigError, match=r"no GPU|needs CuPy"):
        DeviceTable(checks.LAYOUT, ["t"], seed=1)


@pytest.mark.parametrize(
    "layout", [checks.LAYOUT, checks.ALL, HALF, WIDE], ids=["D=5", "D=21", "D=16, bf16", "D=64"]
)
def test_every_kernel_compiles_for_sm_90_within_its_budget(layout: RowLayout) -> None:
    report = ptxas_report(table_source(layout))
    assert usages(report).keys() == set(KERNELS)
    assert over_budget(report, TABLE_BUDGETS) == []


def test_bytes_of_a_row() -> None:
    """K = 16, AdaGrad: at the load that growing starts with and ends with."""
    sizes = Slabs.of(RowLayout((Segment("v", 16, AdaGrad()),)))
    assert sizes.pitch == 128
    most, least = (sizes.pitch + HEADER_BYTES + 256 / 15 / load for load in (0.45, 0.9))
    assert least < 1.26 * (8 + 128) and most < 1.4 * (8 + 128)


def test_slabs_hold_all_row_numbers() -> None:
    """The first row of a slab follows the last of the slab before, as row_place of gpu_table/device_rows.cuh
    has it."""
    sizes = Slabs.of(checks.LAYOUT)
    first = np.cumsum([0, *(sizes.rows(slab) for slab in range(20))])
    for slab, row in enumerate(first[:20].tolist()):
        if row >> sizes.high:
            assert slab == sizes.high - sizes.low + (row >> sizes.high) and row % (1 << sizes.high) == 0
        elif row >> sizes.low:
            assert slab == row.bit_length() - sizes.low and row & (row - 1) == 0
        else:
            assert slab == row == 0
