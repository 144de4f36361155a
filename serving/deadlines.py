"""Deadlines of calls as instants of time.monotonic(), and the cap on every wait.

gRPC reports a call without a deadline as a call that ends in 292 years, longer than a condition variable can
wait. A client may also name any number of seconds. So no wait is longer than `LONGEST_WAIT_S`.
"""

from __future__ import annotations

import time

LONGEST_WAIT_S = 60.0
"""Cap on every wait, whatever the client's deadline."""
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
