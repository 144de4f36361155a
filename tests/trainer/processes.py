"""Trainers as processes of their own."""

import json
import subprocess
from pathlib import Path

from tests.ranks import launch

TRAIN_ONCE = Path(__file__).parent / "train_once.py"


def command(
    world: int, options: dict[str, object], prefix: str, policy: dict[str, object] | None, *more: str
) -> list[str]:
    return launch(world, str(TRAIN_ONCE), json.dumps(options), prefix, json.dumps(policy), *more)


def start(
    world: int,
    options: dict[str, object],
    prefix: str = "",
    policy: dict[str, object] | None = None,
    delayed: str = "wait",
    *,
    changing: bool = False,
) -> subprocess.Popen[bytes]:
    """A trainer in a process group of its own; `policy` is that of all tables, `changing` as of
    `ad_pipeline`."""
    words = command(world, options, prefix, policy, delayed, *(["changing"] if changing else []))
    return subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> str:
    _, text = process.communicate(timeout=240)
    assert process.returncode == 0, text.decode()
    return text.decode()
