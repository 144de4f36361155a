"""Schedule of commits: when a version is due, and when a checkpoint."""

from __future__ import annotations

import time
from enum import IntEnum

from livectr.trainer.checkpoint import telemetry

CHECKPOINT_PAUSE = 9.0
"""Seconds without a checkpoint for each second of the checkpoint before: at most a tenth of the time."""


class Due(IntEnum):
    """Commit that rank 0 asks for."""

    NOTHING = 0
    PUBLISH = 1
    ALL = 2
    """Checkpoint and publish."""
    RELEASED = 3
    """Publish what was held, even if nothing has come since."""
    AHEAD = 4
    """Publish, and begin to copy the next checkpoint ahead."""


class Schedule:
    """Times of commits and checkpoints, by the clock of one rank.

    Args:
        publish_interval_s: least time between commits.
        checkpoint_interval_s: least time between checkpoints.
    """

    def __init__(self, *, publish_interval_s: float, checkpoint_interval_s: float) -> None:
        self._publish_interval_s, self._checkpoint_interval_s = publish_interval_s, checkpoint_interval_s
        self._next_commit = self._next_checkpoint = self._began_s = time.monotonic()

    @property
    def commit(self) -> bool:
        """Tell if the time of a commit has come."""
        return time.monotonic() >= self._next_commit

    @property
    def checkpoint(self) -> bool:
        """Tell if the time of a checkpoint has come."""
        return time.monotonic() >= self._next_checkpoint

    def committed(self) -> None:
        """Note a commit that could publish."""
        self._next_commit = time.monotonic() + self._publish_interval_s

    def began(self, began_s: float) -> None:
        """Note a checkpoint that has begun, at time.monotonic() = began_s."""
        self._began_s = began_s
        telemetry.CHECKPOINT_SECONDS.observe(time.monotonic() - began_s)

    def saved(self) -> None:
        """Note that the checkpoint which has begun exists."""
        took_s = time.monotonic() - self._began_s
        telemetry.CHECKPOINT_WRITE_SECONDS.observe(took_s)
        telemetry.CHECKPOINT_TIMESTAMP.set_to_current_time()
        pause_s = max(self._checkpoint_interval_s, CHECKPOINT_PAUSE * took_s)
        self._next_checkpoint = time.monotonic() + pause_s
