"""Processes of a trainer share cores and memory, each in a process of its own."""

import os
import subprocess
import sys

import pytest

from tests.tiers import few

STEPS = 20

FAULTS = f"""
import resource
import numpy as np
from livectr.system.heap import tune_malloc

tune_malloc()

def step():
    arrays = [np.ones(2_000_000, np.float32) for _ in range(6)]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

POLICY = """
import sys
from livectr.trainer.process import share_cores

share_cores()
assert "torch" not in sys.modules, "it would come too late"
import torch
"""

STEP = """
import sys
import numpy as np
import livectr.trainer.run
from bench.planted import pipeline
from livectr.ingest.plan.features import Features
from livectr.models import DeepFM
from livectr.trainer.des.step import DesStep

built = pipeline(DeepFM(), fields=2, dense=1)
offsets, keys = np.arange(9, dtype=np.int32), np.arange(8, dtype=np.int64)
features = Features(4, offsets, keys, np.ones((4, 1), np.float32))
DesStep(built, seed=1).step(features, np.array([0, 1, 0, 1], np.float32))
print(*sorted(name for name in sys.modules if name in ("torch._dynamo", "torch._inductor", "triton")))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return subprocess.run(
        [sys.executable, "-c", code], env=unset | environment, capture_output=True, text=True, check=True
    )


def test_memory_of_a_step_is_there_for_the_next() -> None:
    """Without it every step faults in its 12,000 pages again."""
    assert int(run(FAULTS).stdout) < 1000 * STEPS


@pytest.mark.parametrize(
    ("given", "wanted"), few([({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")], ({}, "PASSIVE"))
)
def test_waiting_threads_sleep_unless_told_otherwise(given: dict[str, str], wanted: str) -> None:
    """The OpenMP runtime that torch brings says what it took from the environment."""
    said = run(POLICY, OMP_DISPLAY_ENV="true", **given).stderr
    assert f"OMP_WAIT_POLICY = '{wanted}'" in said


def test_training_does_not_import_torchs_compiler() -> None:
    """It takes as long to import as the rest of torch, and nothing is compiled."""
    assert run(STEP).stdout.strip() == ""
