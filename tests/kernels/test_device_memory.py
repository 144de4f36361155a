"""Working memory of a device: pinned blocks in turn, and results that are lent."""

from __future__ import annotations

import numpy as np
import pytest

from livectr.kernels.runtime.device import EmulatedDevice
from livectr.kernels.runtime.device_memory import Workspace
from tests.kernels.queued_device import QueuedDevice

MEMBERS = (("int64_t", "n"),)


@pytest.fixture
def work() -> Workspace:
    return Workspace(QueuedDevice("", []), MEMBERS)


def test_copies_keep_their_memory_until_they_have_run(work: Workspace) -> None:
    """Also where a block of pinned memory is outgrown between two waits."""
    rng = np.random.default_rng(1)
    for _ in range(6):
        given = [rng.integers(0, 1 << 60, 1 + int(size)) for size in rng.integers(0, 40_000, 12)]
        places = [work.upload(f"{i}", array) for i, array in enumerate(given)]
        found = [work.download(at, array.shape, np.int64) for at, array in zip(places, given, strict=True)]
        work.synchronize()
        for array, expected in zip(found, given, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_a_download_is_valid_from_a_wait_to_the_next(work: Workspace) -> None:
    given = np.arange(1_000)
    found = work.download(work.upload("a", given), given.shape, np.int64)
    work.synchronize()
    for number in range(50):
        work.upload(f"other {number}", given + 1)
    np.testing.assert_array_equal(found, given)
    work.synchronize()
    (copied,) = work.fetch((work.memory("a", 8_000), given.shape, np.int64))
    for number in range(50):
        work.upload(f"other {number}", given + 2)
        work.synchronize()
    np.testing.assert_array_equal(copied, given)


def test_a_result_is_lent_again_once_its_arrays_are_gone() -> None:
    def lent() -> tuple[int, np.ndarray]:
        buffer = work.results.take(4_000)
        return buffer.address, device.array(buffer, (10, 100), np.float32)

    device = EmulatedDevice("", [])
    work = Workspace(device, MEMBERS)

    first, array = lent()
    part = array[3:5, 7].reshape(-1)
    del array
    second, other = lent()
    assert second != first
    del part
    third, _ = lent()
    assert third == first
    del other
    assert lent()[0] in (first, second)
    assert work.results.take(100_000).nbytes >= 100_000
