"""Admission control: bounds on the requests that compute, that wait, and on their bytes.

An overloaded server with an unbounded queue answers nobody in time. Here at most `max_active` requests
compute and at most `max_waiting` wait, none longer than its own deadline. Load shedding refuses the rest at
once, so that a client can try another server before its deadline. The memory of a request is bounded by its
bytes, so the bound on the sum of the bytes bounds the server's memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from livectr.serving.deadlines import LONGEST_WAIT_S, end_of_wait, is_over
from livectr.serving.errors import CancelledError, DeadlineError, OverloadError

_CLIENT_CHECK_S = 0.1
"""Interval in seconds at which a waiting request checks that its client is still connected."""


class Admission:
    """Bounded number of places with a bounded queue in front.

    Args:
        max_active: requests that compute at once.
        max_waiting: requests that wait for a place; 0: no request waits.
        max_wait_s: longest wait in seconds of a request without a deadline; of others it is LONGEST_WAIT_S.
        max_bytes: bytes of all requests that compute or wait.

    Raises:
        ValueError: no place, or a negative queue.
    """

    def __init__(
        self, max_active: int, max_waiting: int, max_wait_s: float = 1.0, max_bytes: int = 1 << 62
    ) -> None:
        if max_active < 1 or max_waiting < 0:
            raise ValueError("max_active must be at least 1 and max_waiting at least 0")
        self.max_active = max_active
        self.max_waiting = max_waiting
        self._max_wait_s = min(max_wait_s, LONGEST_WAIT_S)
        self.max_bytes = max_bytes
        self._active = 0
        self._waiting = 0
        self._bytes = 0
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)

    @property
    def active(self) -> int:
        """Requests that compute."""
        return self._active

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return self._waiting

    @property
    def bytes(self) -> int:
        """Bytes of the requests that compute or wait."""
        return self._bytes

    @contextmanager
    def place(
        self, deadline: float | None, size: int = 0, is_active: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Hold a place, as `enter` takes it."""
        self.enter(deadline, size, is_active)
        try:
            yield
        finally:
            self.leave(size)

    def enter(self, deadline: float | None, size: int, is_active: Callable[[], bool]) -> None:
        """Take a place for a request that computes, and wait for it if necessary; `leave` gives it back.

        Args:
            deadline: instant of time.monotonic(); None: no deadline.
            size: bytes of the request.
            is_active: tells whether the client still waits for the answer.

        Raises:
            OverloadError: at once for a full queue or too many bytes; after the longest wait.
            DeadlineError: the deadline passed before a place was free.
            CancelledError: the client went.
        """
        with self._lock:
            if deadline is not None and deadline <= time.monotonic():
                raise DeadlineError("the deadline had passed when the request arrived")
            if self._bytes + size > self.max_bytes:
                raise OverloadError(
                    f"requests of {self._bytes} bytes are computing or waiting; with the {size} of this one "
                    f"they would be more than max_active_bytes, {self.max_bytes}"
                )
            # First come, first served: a new request takes a free place only when no request waits for it.
            if self._active < self.max_active and self._waiting == 0:
                self._active += 1
                self._bytes += size
                return
            if self._waiting >= self.max_waiting:
                raise OverloadError(f"{self._active} requests are computing and {self._waiting} are waiting")
            self._waiting += 1
            self._bytes += size
            try:
                self._wait(deadline, is_active)
                self._active += 1
            except BaseException:
                self._bytes -= size
                # The notification may have been meant for another waiting request: pass it on.
                self._freed.notify()
                raise
            finally:
                self._waiting -= 1

    def leave(self, size: int) -> None:
        """Give back the place of a request of `size` bytes."""
        with self._lock:
            self._active -= 1
            self._bytes -= size
            if self._waiting:
                self._freed.notify()

    def _wait(self, deadline: float | None, is_active: Callable[[], bool]) -> None:
        """Wait for a free place; the caller holds the lock."""
        limit = end_of_wait(deadline, self._max_wait_s)
        while self._active >= self.max_active:
            left = limit - time.monotonic()
            if left <= 0:
                if limit == deadline:
                    raise DeadlineError("the deadline passed while the request was waiting for a place")
                waited_s = self._max_wait_s if deadline is None else LONGEST_WAIT_S
                raise OverloadError(f"no place became free within {waited_s:g} s")
            self._freed.wait(min(left, _CLIENT_CHECK_S))
            if not is_active():
                if is_over(deadline):
                    raise DeadlineError("the deadline passed while the request was waiting for a place")
                raise CancelledError("the client went while the request was waiting for a place")
