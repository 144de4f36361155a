"""Small agreements among ranks (alone every call is the identity)."""

import os
import subprocess
import sys
from pathlib import Path

from livectr.local.ports import free_ports
from livectr.trainer.comm.control import Control
from tests.commands import Command
from tests.waiting import left_s

ROOT = Path(__file__).parents[2]


def test_alone_every_call_is_the_identity() -> None:
    control = Control()
    assert control.broadcast_bytes(b"x") == b"x" and control.gather_json([1]) == [[1]]


def test_what_rank_0_tells_crosses_once() -> None:
    """A broadcast, not a gathering of N equally long messages: item features are large."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1))}
    ranks = [
        Command(
            [sys.executable, "-m", "tests.trainer.control_worker"],
            cwd=ROOT,
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, reported = rank.communicate(timeout=left_s())
        assert rank.returncode == 0, reported.decode()
