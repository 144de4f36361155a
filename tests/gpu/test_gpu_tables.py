"""Training with tables on a real GPU: the checks of the emulated device. `make test-gpu` runs them."""

from __future__ import annotations

import pytest
import torch

from livectr.system.errors import ConfigError
from livectr.trainer.tables.gpu_tables import GpuTables
from tests.gpu.here import DRY, TARGET, TORCH
from tests.trainer import gpu_tables_checks as checks


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("case", checks.CASES)
def test_cached_training_equals_the_host(case: str, prefetch: bool) -> None:
    """Both train networks on the GPU: tables there or in host memory, the bits are the same."""
    checks.cached_training_equals_the_host(TARGET, TORCH, case, prefetch=prefetch)


@pytest.mark.parametrize("case", checks.CASES)
def test_resident_training_equals_the_host(case: str) -> None:
    checks.resident_training_equals_the_host(TARGET, TORCH, case)


@pytest.mark.parametrize("case", ["both, gathered", "grouped"])
def test_host_tables_get_ids_alone(case: str) -> None:
    checks.host_tables_get_ids_alone(TARGET, TORCH, case)


@pytest.mark.parametrize("case", checks.CASES)
def test_networks_wait_once(case: str) -> None:
    checks.networks_wait_once(TARGET, TORCH, case)


def test_a_step_waits_once() -> None:
    checks.a_step_waits_once(TARGET, TORCH)


def test_a_resumed_step_continues() -> None:
    checks.a_resumed_step_continues(TARGET, TORCH)


def test_rows_never_pass_the_host() -> None:
    """Rows of a step are tensors on the GPU, and so are their gradients."""
    step = checks.step_of("both", TORCH, GpuTables(2_000_000, TARGET))
    assert step.storage.cache is not None
    features, label = next(checks.batches("both", 0))
    leaves = step.routed.reading.forward(step.prepare(features, label).batch)
    assert all(leaf.device == torch.device(TORCH) and leaf.is_leaf for leaf in leaves)
    for leaf in leaves:
        leaf.sum().backward()  # type: ignore[no-untyped-call]
    assert step.routed.reading.backward(leaves) == len(step.storage.cache) > 0


@pytest.mark.skipif(DRY, reason="the emulated device is host memory")
def test_networks_on_the_cpu_are_refused() -> None:
    with pytest.raises(ConfigError, match="need a PyTorch that sees it"):
        checks.step_of("both", "cpu", GpuTables(100))
