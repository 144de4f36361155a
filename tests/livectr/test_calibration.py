"""Shipped rates with a batch ramp promise about as many clicks as come, from a log's first twentieth on.

A model that overshoots promises twice the clicks after a few steps; it took batches of 4,096 three steps.
"""

import numpy as np
import pytest

from bench.learning.compare import HIGH, LOW, slices
from bench.learning.logs import Log, planted
from bench.learning.ours import scores

ROWS = 10_000


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.full)])
def log(request: pytest.FixtureRequest) -> Log:
    """Planted log of a seed: 26 fields, 13 dense features."""
    return planted(request.param, ROWS)


@pytest.mark.full
@pytest.mark.parametrize("batch_size", [16, 256, 4096, 65_536])
def test_no_slice_is_far_off(log: Log, batch_size: int) -> None:
    for model, logits in scores(log, seed=1, batch_size=batch_size, threads=1).items():
        found = slices(log, logits)
        assert len(found) == 19
        assert min(found) >= LOW and max(found) <= HIGH, (model, found)


def test_a_slice_that_is_far_off_is_found(log: Log) -> None:
    assert max(slices(log, np.full(ROWS, 3.0, np.float32))) > HIGH
