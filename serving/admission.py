"""Admission of requests: how many compute, how many may wait, and for how long.

An overloaded server that queues without bound answers nobody in time. Here at most `max_active` requests
compute, at most `max_waiting` wait for a place, each no longer than its own deadline allows; everything
beyond is refused at once, so that the client can try elsewhere while its deadline still has room.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from serving.errors import DeadlineError, OverloadError


class Admission:
    """A bounded number of places and a bounded queue before them.

    max_active: requests computing at once. max_waiting: requests waiting for a place (0: nobody waits).
    max_wait_s: the longest wait of a request that carries no deadline.
    """

    def __init__(self, max_active: int, max_waiting: int, max_wait_s: float = 1.0) -> None:
        if max_active < 1 or max_waiting < 0:
            raise ValueError("max_active must be at least 1 and max_waiting at least 0")
        self.max_active = max_active
        self.max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._active = 0
        self._waiting = 0
        self._freed = threading.Condition(threading.Lock())

    @property
    def active(self) -> int:
        """Requests computing."""
        return self._active

    @property
    def waiting(self) -> int:
        """Requests waiting for a place."""
        return self._waiting

    @contextmanager
    def place(self, deadline: float | None) -> Iterator[None]:
        """Holds a place. `deadline` is an instant of time.monotonic(), None: no deadline.

        Raises OverloadError at once when the queue is full, or when a request without deadline has waited
        max_wait_s; DeadlineError when the deadline passes first.
        """
        self._enter(deadline)
        try:
            yield
        finally:
            with self._freed:
                self._active -= 1
                self._freed.notify()

    def _enter(self, deadline: float | None) -> None:
        with self._freed:
            if deadline is not None and deadline <= time.monotonic():
                raise DeadlineError("the deadline had passed when the request arrived")
            # Whoever waits goes first: a newcomer takes a free place only when nobody is waiting for it.
            if self._active < self.max_active and self._waiting == 0:
                self._active += 1
                return
            if self._waiting >= self.max_waiting:
                raise OverloadError(f"{self._active} requests are computing and {self._waiting} are waiting")
            limit = deadline if deadline is not None else time.monotonic() + self._max_wait_s
            self._waiting += 1
            try:
                while self._active >= self.max_active:
                    left = limit - time.monotonic()
                    if left <= 0:
                        if deadline is None:
                            raise OverloadError(f"no place became free within {self._max_wait_s} s")
                        raise DeadlineError("the deadline passed while the request was waiting for a place")
                    self._freed.wait(left)
                self._active += 1
            except BaseException:
                # The notification that woke this one may have been meant for another.
                self._freed.notify()
                raise
            finally:
                self._waiting -= 1
