"""Trainers that are killed at a random moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.ranks import Processes
from tests.waiting import left_s, until

IMPRESSIONS = 5_000
OPTIONS: dict[str, object] = dict(
    batch_size=64, batch_ramp=0, publish_interval_s=0.15, threads=1, until_end=True
)


def generation(root: Path) -> int:
    manifest = newest_manifest(root) if root.exists() else None
    return manifest.generation if manifest is not None else 0


def kill_somewhere(process: Processes, root: Path, rng: random.Random, sudden: Callable[[int], None]) -> bool:
    """Kill the process soon after it has committed something new; False: it had ended."""
    before = generation(root)
    until(lambda: generation(root) != before or process.poll() is not None, turn=lambda: time.sleep(0.005))
    time.sleep(rng.random() * 0.4)
    if process.poll() is not None:
        process.communicate()
        return False
    sudden(process.pid)
    process.communicate(timeout=left_s())
    return True


def kill_up_to(
    times: int,
    begin: Callable[[], Processes],
    kill: Callable[[Processes], bool],
    *left: Callable[[], object],
) -> int:
    """Begin a run until it has been killed so often, or once and has then ended; returns how often it began.

    A busy machine may look after the end of a run that it has not killed yet: then the run begins anew.

    Args:
        times: most kills.
        begin: starts the trainer.
        kill: as `kill_somewhere`.
        left: removes what a run has left.
    """
    begun = kills = 0
    while kills < times:
        begun += 1
        if kill(begin()):
            kills += 1
        elif kills:
            break
        else:
            begun = 0
            for remove in left:
                remove()
    return begun


def kill_group(pid: int) -> None:
    os.killpg(pid, signal.SIGKILL)


def kill_one_rank(pid: int) -> None:
    """kill -9 one rank of several (or the trainer itself); the others must end by themselves."""
    trainer = psutil.Process(pid)
    ranks = [child for child in trainer.children() if child.cmdline() == trainer.cmdline()]  # forked
    (ranks[-1] if ranks else trainer).kill()
