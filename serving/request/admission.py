"""Admission of requests: how many compute, how many may wait, for how long, and how many bytes they hold.

An overloaded server that queues without bound answers nobody in time. Here at most `max_active` requests
compute, at most `max_waiting` wait for a place, each no longer than its own deadline allows; everything
beyond is refused at once, so that the client can try elsewhere while its deadline still has room. What a
request takes is bounded by its bytes, so a bound of the bytes of all of them bounds the server's memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from livectr.serving.deadlines import LONGEST_WAIT_S, end_of_wait
from livectr.serving.errors import CancelledError, DeadlineError, OverloadError

_LOOK_S = 0.1
"""A request that waits looks so often for its client, which may have gone."""


class Admission:
    """A bounded number of places and a bounded queue before them.

    max_active: requests computing at once. max_waiting: requests waiting for a place (0: nobody waits).
    max_wait_s: the longest wait of a request that carries no deadline; that of others is LONGEST_WAIT_S.
    max_bytes: of all requests that compute or wait.
    """

    def __init__(
        self, max_active: int, max_waiting: int, max_wait_s: float = 1.0, max_bytes: int = 1 << 62
    ) -> None:
        if max_active < 1 or max_waiting < 0:
            raise ValueError("max_active must be at least 1 and max_waiting at least 0")
        self.max_active = max_active
        self.max_waiting = max_waiting
        self._max_wait_s = min(max_wait_s, LONGEST_WAIT_S)
        self._max_bytes = max_bytes
        self._active = 0
        self._waiting = 0
        self._bytes = 0
        self._freed = threading.Condition(threading.Lock())

    @property
    def active(self) -> int:
        """Requests computing."""
        return self._active

    @property
    def waiting(self) -> int:
        """Requests waiting for a place."""
        return self._waiting

    @property
    def bytes(self) -> int:
        """Bytes of the requests that compute or wait."""
        return self._bytes

    @contextmanager
    def place(
        self, deadline: float | None, size: int = 0, here: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Holds a place. `deadline` is an instant of time.monotonic(), None: no deadline. size: bytes of the
        request. here: says whether the client still wants the answer.

        Raises OverloadError at once when the queue is full or the bytes are too many, or when a request has
        waited as long as it may; DeadlineError when the deadline passes first, CancelledError when the client
        goes.
        """
        self._enter(deadline, size, here)
        try:
            yield
        finally:
            with self._freed:
                self._active -= 1
                self._bytes -= size
                self._freed.notify()

    def _enter(self, deadline: float | None, size: int, here: Callable[[], bool]) -> None:
        with self._freed:
            if deadline is not None and deadline <= time.monotonic():
                raise DeadlineError("the deadline had passed when the request arrived")
            if self._bytes + size > self._max_bytes:
                raise OverloadError(
                    f"requests of {self._bytes} bytes are computing or waiting; with the {size} of this one "
                    f"they would be more than max_active_bytes, {self._max_bytes}"
                )
            # Whoever waits goes first: a newcomer takes a free place only when nobody is waiting for it.
            if self._active < self.max_active and self._waiting == 0:
                self._active += 1
                self._bytes += size
                return
            if self._waiting >= self.max_waiting:
                raise OverloadError(f"{self._active} requests are computing and {self._waiting} are waiting")
            self._waiting += 1
            self._bytes += size
            try:
                self._wait(deadline, here)
                self._active += 1
            except BaseException:
                self._bytes -= size
                # The notification that woke this one may have been meant for another.
                self._freed.notify()
                raise
            finally:
                self._waiting -= 1

    def _wait(self, deadline: float | None, here: Callable[[], bool]) -> None:
        """Returns when there is a place, with the lock held."""
        limit = end_of_wait(deadline, self._max_wait_s)
        while self._active >= self.max_active:
            left = limit - time.monotonic()
            if left <= 0:
                if limit == deadline:
                    raise DeadlineError("the deadline passed while the request was waiting for a place")
                waited_s = self._max_wait_s if deadline is None else LONGEST_WAIT_S
                raise OverloadError(f"no place became free within {waited_s:g} s")
            self._freed.wait(min(left, _LOOK_S))
            if not here():
                raise CancelledError("the client went while the request was waiting for a place")
