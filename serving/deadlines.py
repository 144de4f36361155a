"""Deadlines of calls as instants of time.monotonic(), and the cap on every wait.

gRPC reports a call without a deadline as a call that ends in 292 years, longer than a condition variable can
wait. A client may also name any number of seconds. So no wait is longer than `LONGEST_WAIT_S`.

The call that a thread answers is a context variable, as the request id is: its deadline bounds reads of Redis
far below the handler, and each stage of a request ends with `Call.check`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from livectr.serving.errors import CancelledError, DeadlineError

LONGEST_WAIT_S = 60.0
"""Cap on every wait, whatever the client's deadline."""
_SAME_S = 0.02
"""gRPC ends a call at its deadline by a clock of its own, some milliseconds before ours."""
_NO_DEADLINE_S = 365 * 86_400.0
"""Calls with more time left than this have no deadline."""


def deadline_of(left_s: float | None) -> float | None:
    """Convert gRPC's remaining seconds of a call into a deadline; None: the call has none."""
    return time.monotonic() + left_s if left_s is not None and left_s < _NO_DEADLINE_S else None


def end_of_wait(deadline: float | None, otherwise_s: float = LONGEST_WAIT_S) -> float:
    """Instant until which a call may wait: its deadline, at most LONGEST_WAIT_S from now.

    Args:
        deadline: instant of time.monotonic(); None: no deadline.
        otherwise_s: longest wait in seconds of a call without a deadline.
    """
    now = time.monotonic()
    latest = now + otherwise_s if deadline is None else deadline
    return min(latest, now + LONGEST_WAIT_S)


def is_over(deadline: float | None) -> bool:
    """Tell of a call that has ended if its deadline ended it, and not its client: it is as good as here."""
    return deadline is not None and deadline - time.monotonic() < _SAME_S


class Call:
    """Call of a client.

    Args:
        deadline: instant of time.monotonic(); None: no deadline.
        is_active: tells whether the client still waits for the answer.
    """

    __slots__ = ("deadline", "is_active")

    def __init__(self, deadline: float | None = None, is_active: Callable[[], bool] = lambda: True) -> None:
        self.deadline, self.is_active = deadline, is_active

    def check(self, stage: str, ends: Sequence[tuple[str, float]] = ()) -> None:
        """Stop a request at the end of a stage, once its client cannot use the answer.

        Args:
            stage: that has ended.
            ends: stages before it with the instants at which they ended; the error names that in which the
                deadline passed.

        Raises:
            DeadlineError: the deadline has passed.
            CancelledError: the client went.
        """
        active, deadline = self.is_active(), self.deadline
        if deadline is not None and (time.monotonic() >= deadline or (not active and is_over(deadline))):
            stage = next((before for before, end in ends if end >= deadline), stage)
            raise DeadlineError(f"the deadline passed in the stage {stage}")
        if not active:
            raise CancelledError(f"the client went in the stage {stage}")


NO_CALL = Call()
CALL: ContextVar[Call] = ContextVar("call", default=NO_CALL)
"""Call that this thread answers; a call without a deadline in other threads."""


@contextmanager
def answering(call: Call) -> Iterator[None]:
    """Make a call this thread's current call."""
    token = CALL.set(call)
    try:
        yield
    finally:
        CALL.reset(token)
