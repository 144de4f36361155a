"""Deadlines of calls as instants of time.monotonic(), and limits of what a call may wait for.

gRPC tells a call without a deadline as one that is 292 years away: more than a condition variable can wait
for. A client may also name any number of seconds. So no wait is longer than `LONGEST_WAIT_S`.
"""

from __future__ import annotations

import time

LONGEST_WAIT_S = 60.0
"""Longest wait for anything, whatever a client's deadline says."""
_NO_DEADLINE_S = 365 * 86_400.0
"""A call with more time left than this has no deadline."""


def deadline_of(left_s: float | None) -> float | None:
    """The deadline of a call with so many seconds left, as gRPC says; None: it has none."""
    return time.monotonic() + left_s if left_s is not None and left_s < _NO_DEADLINE_S else None


def end_of_wait(deadline: float | None, otherwise_s: float = LONGEST_WAIT_S) -> float:
    """The instant until which a call may wait: at most its deadline, and at most LONGEST_WAIT_S from now.

    otherwise_s: seconds that a call without deadline may wait.
    """
    now = time.monotonic()
    wanted = now + otherwise_s if deadline is None else deadline
    return min(wanted, now + LONGEST_WAIT_S)
