"""Trainers as processes of their own, alone or under torchrun."""

import json
import subprocess
import sys
from pathlib import Path

TRAIN_ONCE = Path(__file__).parent / "train_once.py"


def command(
    world: int, options: dict[str, object], prefix: str, policy: dict[str, object] | None
) -> list[str]:
    once = [str(TRAIN_ONCE), json.dumps(options), prefix, json.dumps(policy)]
    if world == 1:
        return [sys.executable, *once]
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--max-restarts=0",
        f"--nproc-per-node={world}",
    ]
    return [sys.executable, *torchrun, *once]


def start(
    world: int, options: dict[str, object], prefix: str = "", policy: dict[str, object] | None = None
) -> subprocess.Popen[bytes]:
    """A trainer in a process group of its own; `policy` is that of all tables."""
    words = command(world, options, prefix, policy)
    return subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> str:
    _, text = process.communicate(timeout=240)
    assert process.returncode == 0, text.decode()
    return text.decode()
