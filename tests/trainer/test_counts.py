"""Counters in runs: the same on any number of ranks, and after kills."""

from __future__ import annotations

import json
import random
from pathlib import Path

from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from tests.ranks import Processes
from tests.trainer.ad_logs import write_files
from tests.trainer.counts_once import counting_ads
from tests.trainer.kills import OPTIONS, kill_group, kill_one_rank, kill_somewhere
from tests.trainer.processes import finish
from tests.trainer.run_result import Result, assert_close, assert_same


def counters(root: Path) -> dict[str, bytes]:
    """Counters of the newest checkpoint."""
    manifest = newest_manifest(root)
    assert manifest is not None
    return {name: array.tobytes() for name, array in Restored(root, manifest).state("counters").items()}


def test_ranks_that_are_killed_end_as_one_that_was_not(tmp_path: Path) -> None:
    source = write_files(tmp_path / "logs", 1_500)

    def begin(world: int, name: str) -> Processes:
        options = {**OPTIONS, "source": source, "checkpoint": str(tmp_path / name)}
        return Processes(world, "tests.trainer.counts_once", [json.dumps(options)])

    finish(begin(1, "unbroken"))
    for world, name, kill in ((1, "one", kill_group), (2, "two", kill_one_rank)):
        kill_somewhere(begin(world, name), tmp_path / name, random.Random(), kill)
        finish(begin(world, name))
    one, two, unbroken = (Result(tmp_path / name, counting_ads()) for name in ("one", "two", "unbroken"))
    assert_same(one, unbroken)
    assert_close(two, unbroken)
    want = counters(tmp_path / "unbroken")
    assert len(want) == 10 and all(want.values())
    assert counters(tmp_path / "one") == want and counters(tmp_path / "two") == want
