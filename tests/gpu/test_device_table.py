"""Tables and their cache on a real GPU: the checks of the emulated device. `make test-gpu` runs them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

from livectr.kernels.gpu_table.device_table import DeviceTable
from livectr.kernels.gpu_table.gpu_cache import CachedFields, GpuCache
from livectr.kernels.runtime.device import CudaDevice, EmulatedDevice
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import Values
from livectr.kernels.table.table import DynamicTable
from tests.gpu.here import TARGET, TORCH, needs_streams, size
from tests.kernels import device_table_checks as checks

TestDeviceTableIsADict = checks.table_is_a_dict(TARGET, size(20, 3))


@pytest.mark.parametrize("values", ["fp32", "bf16", "fp16"])
def test_equals_the_host_table(values: Values) -> None:
    checks.equals_the_host_table(TARGET, values, size=size(100_000, 1_000))


def test_grows_at_a_load_of_nine_tenths() -> None:
    checks.grows_at_a_load_of_nine_tenths(TARGET, size(300_000, 10_000))


def test_erased_keys_leave_room() -> None:
    checks.erased_keys_leave_room(TARGET)


@pytest.mark.parametrize("other", [TARGET, EmulatedDevice])
def test_same_bits_again_and_as_the_emulated_device(other: type[CudaDevice] | type[EmulatedDevice]) -> None:
    checks.same_bits_in_any_order(TARGET, other)


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("budget_rows", [700, 1_100, 10_000])
def test_cached_training_equals_the_host(budget_rows: int, prefetch: bool) -> None:
    checks.cached_training_equals_the_host(TARGET, budget_rows, prefetch=prefetch, grouped=prefetch)


@pytest.mark.parametrize(("prefetch", "track"), [(False, False), (True, False), (True, True)])
def test_a_step_waits_once(prefetch: bool, track: bool) -> None:
    checks.steps_wait_and_allocate_little(TARGET, prefetch=prefetch, track=track)


def test_the_least_recently_used_rows_leave() -> None:
    checks.the_least_recently_used_rows_leave(TARGET)


def test_keys_may_be_on_the_device() -> None:
    checks.cached_training_equals_the_host(
        TARGET, 700, prefetch=True, given=lambda array: torch.from_numpy(array).to(TORCH)
    )


def test_a_cache_can_be_dropped() -> None:
    checks.a_cache_can_be_dropped(TARGET)


def test_uses_and_erasures_reach_the_host() -> None:
    checks.uses_and_erasures_reach_the_host(TARGET)


def test_wrong_calls_are_told() -> None:
    checks.wrong_calls_are_told(TARGET)


def test_torch_reads_and_trains_the_rows() -> None:
    """Values and gradients cross as device memory, in order with torch's stream."""
    hosts = [{"t": DynamicTable(checks.ALL, name="t", seed=1)} for _ in range(2)]
    plain = FieldTables(hosts[0], [("f", "t")])
    keys_of_batch, budget = size(50_000, 500), size(60_000, 600)
    cache = GpuCache(hosts[1], budget_rows=budget, target=TARGET)
    front = CachedFields(cache, [("f", "t")])
    rng, offsets = np.random.default_rng(1), np.arange(keys_of_batch + 1, dtype=np.int32)
    for _ in range(20):
        keys = rng.integers(0, budget * 3 // 2, keys_of_batch)
        (expected,) = plain.forward(offsets, keys, keys_of_batch)
        (values,) = front.forward(offsets, keys, keys_of_batch)
        weights = from_dlpack(values).requires_grad_()
        assert weights.device == torch.device(TORCH)
        (weights * weights).sum().backward()  # type: ignore[no-untyped-call]
        assert front.backward(weights.grad) == plain.backward(expected + expected)
    cache.flush()
    checks.same_tables(hosts[0], hosts[1], {"t": 0})
    assert isinstance(cache.device, DeviceTable) and cache.evicted > 0


@needs_streams
def test_a_dropped_tensor_is_read_before_its_memory_is_written() -> None:
    """Its reader still waits in the queue of torch's stream when the next batch takes memory."""
    cache = GpuCache({"t": DynamicTable(checks.ALL, name="t", seed=1)}, budget_rows=60_000)
    front, offsets = CachedFields(cache, [("f", "t")]), np.arange(10_001, dtype=np.int32)
    (values,) = front.forward(offsets, np.arange(10_000), 10_000)
    expected = values.get()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        tensor = from_dlpack(values)
        torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # cycles
        copied = tensor.clone()
        del tensor, values
        front.forward(offsets, np.arange(10_000, 20_000), 10_000)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(copied.cpu().numpy(), expected)
