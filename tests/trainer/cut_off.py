"""One trainer that is killed at a point of its publishing: all ranks at once, with no chance to clean up."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import redis

from livectr.ingest.pipeline import load_pipeline
from livectr.trainer import schedule
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.row_writer import RowWriter
from livectr.trainer.publish.store_connection import StoreConnection
from livectr.trainer.run import TrainOptions, train
from livectr.trainer.stages import Stages
from livectr.trainer.stream.cut import Cut
from tests.trainer.expiring_log import PIPELINE
from tests.waiting import until

POINTS = {
    "rows": (RowWriter, "write", True),
    "written": (RedisStore, "pushed", False),
    "unflipped": (RedisStore, "flip", False),
    "flipped": (RedisStore, "flip", True),
    "slow lists": (RowWriter, "write", True),
}
"""Point → class and its call, and if the kill comes after it."""

CUT_OFF = b"cut off here"
AHEAD = 3


def die() -> None:
    """Say so, and kill all ranks."""
    os.write(1, CUT_OFF)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(options: str, point: str, calls: str) -> int:
    """Train the pipeline of test_left.py and die at the n-th call of a point.

    At "slow lists", rank 0 dies in its rows, and other ranks write their lists of changed keys late. At
    "refused list" no rank dies: Redis refuses the n-th list of rank 1.
    """
    schedule.CHECKPOINT_PAUSE = 0.0
    keep_pace()
    if point in POINTS:
        kill_at_call(point, int(calls))
    if point.endswith(("lists", "list")) and os.environ["RANK"] != "0":
        trouble_lists(int(calls) if point == "refused list" else 0)
    train(load_pipeline(PIPELINE), TrainOptions(**json.loads(options)))
    return 0


def keep_pace() -> None:
    """Let training wait for a push that it is AHEAD steps ahead of: else a slow Redis gets few versions, and
    the log ends before the call that is waited for.
    """
    advance, ahead = Stages.advance, 0

    def advanced(self: Stages, cut: Cut | None) -> None:
        nonlocal ahead
        assert self.push is not None
        ahead = ahead + 1 if self.push.working else 0
        if ahead > AHEAD:
            push = self.push
            until(lambda: not push.working, turn=lambda: time.sleep(0.001))
        advance(self, cut)

    Stages.advance = advanced  # type: ignore[method-assign]


def kill_at_call(point: str, left: int) -> None:
    """Let all ranks die at the `left`-th call of a point."""
    owner, name, after = POINTS[point]
    real: Callable[..., Any] = getattr(owner, name)

    def counted(self: object, *args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            die()
        answer = real(self, *args, **options)
        if left == 0:
            die()
        return answer

    setattr(owner, name, counted)


def trouble_lists(refused: int) -> None:
    """Refuse the list of so many of this rank's; 0: write all of them late."""
    real, written = StoreConnection.write_blob, 0

    def write_blob(self: StoreConnection, name: str, value: bytes) -> None:
        nonlocal written
        if ":changed-" in name:
            written += 1
            if written == refused:
                raise redis.ConnectionError("refused by a test")
            if not refused:
                time.sleep(0.3)
        real(self, name, value)

    StoreConnection.write_blob = write_blob  # type: ignore[method-assign]
