"""Phase-fair readers-writer lock: requests share it; a request that adds rows, or a swap, is exclusive.

Readers and writers take turns. A writer waits for the readers before it alone: later readers queue behind it.
When it ends, all readers that wait go next, whatever writers wait. So neither starves the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from livectr.serving.deadlines import end_of_wait
from livectr.serving.errors import DeadlineError


class SwapLock:
    """Phase-fair readers-writer lock. Not re-entrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._readers = 0
        self._queued_readers = 0
        self._writers = 0
        self._writing = False
        self._phase = 0
        """Writers that have ended."""

    @contextmanager
    def read(self, deadline: float | None = None) -> Iterator[None]:
        """Hold the lock together with other readers.

        Args:
            deadline: instant of time.monotonic(); None: no deadline.

        Raises:
            DeadlineError: the deadline, or the longest wait, passed first.
        """
        with self._changed:
            if self._writers:
                self._queue(end_of_wait(deadline))
            else:
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
                self._readers += self._queued_readers
                self._queued_readers = 0
                self._phase += 1
                self._changed.notify_all()

    def _queue(self, limit: float) -> None:
        """Wait for the end of a writer, which counts the waiting readers in."""
        phase = self._phase
        self._queued_readers += 1
        while self._phase == phase:
            left = limit - time.monotonic()
            if left <= 0:
                self._queued_readers -= 1
                raise DeadlineError("the deadline passed while a new version was being swapped in")
            self._changed.wait(left)
