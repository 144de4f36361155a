"""kill -9 in the small batches of compiled calls, and where torch's step takes over: no bit changes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.des.small_batch import MOST
from livectr.trainer.des.step import DesStep
from livectr.trainer.ramp import BatchRamp
from tests.ranks import Processes
from tests.trainer.ad_logs import without_users, write_files
from tests.trainer.processes import finish
from tests.trainer.run_result import Result, assert_same
from tests.waiting import left_s

IMPRESSIONS = 1_000
RAMP = BatchRamp(most=80, first=8, slope=6)
"""Batches of 8 examples, then more and more, then the first that is too large for compiled calls."""


def test_killed_in_small_batches_and_at_the_first_large_one(tmp_path: Path) -> None:
    sizes = sizes_of(RAMP)
    small = len([size for size in sizes if size <= MOST])
    assert sizes[small] == MOST + 1 and len(set(sizes[:small])) > 9
    assert DesStep(without_users(), seed=1).small is not None, "the compiled step is what is tested"
    source = write_files(tmp_path / "logs", IMPRESSIONS)

    finish(begin(source, tmp_path / "unbroken"))
    root = tmp_path / "killed"
    for steps, dies_at in ((small // 2, 32), (small, MOST + 1)):
        finish(begin(source, root, max_steps=steps))
        stopped = newest_manifest(root)
        assert stopped is not None and stopped.step == steps
        killed = begin(source, root, dies_at=dies_at)
        killed.communicate(timeout=left_s())
        assert killed.returncode == -signal.SIGKILL
    finish(begin(source, root))

    unbroken = Result(tmp_path / "unbroken", without_users())
    assert len(unbroken.predictions) == IMPRESSIONS
    assert_same(Result(root, without_users()), unbroken)


def sizes_of(ramp: BatchRamp) -> list[int]:
    """Sizes of a run's batches."""
    sizes: list[int] = []
    while (seen := sum(sizes)) < IMPRESSIONS:
        sizes.append(min(ramp.size(seen), IMPRESSIONS - seen))
    return sizes


def begin(source: str, root: Path, dies_at: int = 0, max_steps: int | None = None) -> Processes:
    """A trainer that dies after the first batch of `dies_at` examples or more."""
    options = dict(
        source=source,
        checkpoint=str(root),
        batch_size=RAMP.most,
        batch_ramp=RAMP.first,
        slope=RAMP.slope,
        publish_interval_s=0.05,
        threads=1,
        until_end=True,
        max_steps=max_steps,
    )
    return Processes(1, "tests.trainer.small_once", (json.dumps(options), str(dies_at)))
