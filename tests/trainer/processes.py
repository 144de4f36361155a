"""Trainers as processes of their own."""

import json

from tests.ranks import Processes
from tests.waiting import left_s


def start(
    world: int,
    options: dict[str, object],
    prefix: str = "",
    policy: dict[str, object] | None = None,
    delayed: str = "wait",
    *,
    changing: bool = False,
) -> Processes:
    """A trainer in a process group of its own; `policy` is that of all tables, `changing` as of
    `ad_pipeline`."""
    words = json.dumps(options), prefix, json.dumps(policy), delayed, "changing" if changing else ""
    return Processes(world, "tests.trainer.train_once", words)


def finish(ranks: Processes) -> str:
    """Wait for the end of a run that is to end well; returns what it wrote."""
    _, text = ranks.communicate(timeout=left_s())
    assert ranks.returncode == 0, text.decode()
    return text.decode()
