"""A lock that many requests share and a version swap has alone.

A waiting writer goes first: new readers queue behind it, so that a swap is never starved by a busy server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from livectr.serving.deadlines import end_of_wait
from livectr.serving.errors import DeadlineError


class SwapLock:
    """Shared by readers, exclusive for writers, writers first. Not re-entrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._readers = 0
        self._writers = 0
        self._writing = False

    @contextmanager
    def read(self, deadline: float | None = None) -> Iterator[None]:
        """Shares the lock. Raises DeadlineError when `deadline` (time.monotonic()), or the longest wait,
        passes first."""
        with self._changed:
            limit = end_of_wait(deadline) if self._writers else 0.0
            while self._writers:
                left = limit - time.monotonic()
                if left <= 0:
                    raise DeadlineError("the deadline passed while a new version was being swapped in")
                self._changed.wait(left)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                if self._readers == 0:
                    self._changed.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Has the lock alone."""
        with self._changed:
            self._writers += 1
            while self._readers or self._writing:
                self._changed.wait()
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._writers -= 1
                self._changed.notify_all()
