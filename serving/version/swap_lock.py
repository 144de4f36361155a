"""Readers-writer lock with writer preference: requests share it, a version swap is exclusive.

New readers queue behind a waiting writer, so a busy server cannot starve a swap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from livectr.serving.deadlines import end_of_wait
from livectr.serving.errors import DeadlineError


class SwapLock:
    """Readers-writer lock with writer preference. Not re-entrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._readers = 0
        self._writers = 0
        self._writing = False

    @contextmanager
    def read(self, deadline: float | None = None) -> Iterator[None]:
        """Hold the lock together with other readers.

        Args:
            deadline: instant of time.monotonic(); None: no deadline.

        Raises:
            DeadlineError: the deadline, or the longest wait, passed first.
        """
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
        """Hold the lock exclusively."""
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
