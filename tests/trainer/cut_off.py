"""One trainer that is killed at a point of its publishing: all ranks at once, with no chance to clean up."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from livectr.ingest.pipeline import load_pipeline
from livectr.trainer import commits
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.run import TrainOptions, train
from tests.trainer.test_left import PIPELINE

POINTS = {
    "rows": ("write_rows", True),
    "written": ("pushed", False),
    "unflipped": ("flip", False),
    "flipped": ("flip", True),
}
"""Point → call of RedisStore, and if the kill comes after it."""


CUT_OFF = b"cut off here"


def die() -> None:
    """Say so, and kill all ranks."""
    os.write(1, CUT_OFF)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(options: str, point: str, calls: str) -> int:
    """Train the pipeline of test_left.py and die at the n-th call of a point."""
    name, after = POINTS[point]
    real: Callable[..., Any] = getattr(RedisStore, name)
    left = int(calls)

    def counted(self: RedisStore, *args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            die()
        answer = real(self, *args, **options)
        if left == 0:
            die()
        return answer

    setattr(RedisStore, name, counted)
    commits.CHECKPOINT_PAUSE = 0.0
    train(load_pipeline(PIPELINE), TrainOptions(**json.loads(options)))
    return 0
