"""Ranks on GPUs: NCCL where each has a GPU of its own, Gloo through host memory where they share one."""

from __future__ import annotations

import pytest
import torch

from bench.launch import launch
from tests.gpu.here import DRY


def test_two_ranks_on_the_gpus_that_are_there() -> None:
    """With one GPU they share it, and do not wait for NCCL for ten minutes."""
    found = launch("tests.gpu.ranks_worker", "ranks", world=2)
    assert found["device"] == ("cpu" if DRY else "cuda:0")
    if DRY or torch.cuda.device_count() == 1:
        assert found["backend"] == "gloo"


def test_nccl_in_a_group_of_one() -> None:
    """All-reduce, all-to-all of one, send and receive to self."""
    launch("tests.gpu.ranks_worker", "alone", world=1)


def test_nccl_between_two_gpus() -> None:
    count = 0 if DRY else torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"NCCL between GPUs needs two, and there are {count}")
    assert "nccl" in launch("tests.gpu.ranks_worker", "ranks", world=2)["backend"]
