"""Circuit breaker of requests' reads: after a failed read, requests do not read for a moment.

So a dead Redis costs a single time-out instead of a time-out for each request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

from livectr.serving.deadlines import CALL
from livectr.serving.errors import RefusedError
from livectr.store.redis_errors import REDIS_ERRORS, Outcome, outcome_of

T = TypeVar("T")

_SHARE = 0.5
"""Part of what is left of a request's deadline that a read may take."""
_SLOW_S = 0.05
"""Seconds that a read may take, from which one without an answer tells of a slow Redis; with less it tells
of a hasty client alone, however long this process took to see it."""
_PAUSE_S = 0.5
"""Time in seconds for which requests do not read after a failure."""


class DownError(Exception):
    """Redis cannot be read at the moment."""


class CircuitBreaker:
    """Runs the reads of requests. Thread-safe.

    Args:
        url: of Redis, without a password.
        failed: told the problem of each read that failed.
    """

    def __init__(self, url: str, failed: Callable[[str], None]) -> None:
        self._url = url
        self._failed = failed
        self._pause_until = 0.0
        self._failure: DownError | RefusedError | None = None

    def run(self, command: Callable[[float | None], T]) -> T:
        """Run a request's command, unless one has failed just now.

        Args:
            command: takes the instant of time.monotonic() at which it gives up: half of what is left of the
                call's deadline. So the request can still be answered, without what it did not read.

        Raises:
            DownError, RefusedError: the command failed, or one before it.
        """
        started = time.monotonic()
        if started < self._pause_until and self._failure is not None:
            raise type(self._failure)(str(self._failure))
        deadline = CALL.get().deadline
        most_s = None if deadline is None else _SHARE * max(0.0, deadline - started)
        try:
            return command(None if most_s is None else started + most_s)
        except REDIS_ERRORS as error:
            down = outcome_of(error) is Outcome.DEGRADED
            problem = f"Redis at {self._url} {'cannot be read' if down else 'refuses'} ({error})"
            self._failed(problem)
            failure = (DownError if down else RefusedError)(problem)
            if most_s is None or most_s >= _SLOW_S or not isinstance(error, redis.TimeoutError):
                self._failure, self._pause_until = failure, time.monotonic() + _PAUSE_S
            raise failure from error

    def close(self) -> None:
        """Let requests read at once: Redis has just answered."""
        self._pause_until = 0.0
