"""Hedged calls (Dean & Barroso, "The Tail at Scale", 2013): a slow call is made once more elsewhere.

gRPC's service config has a hedgingPolicy (gRFC A6), but its C core, which Python uses, ignores it (1.85). So
the client hedges: the first answer counts, and the other call is cancelled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import grpc

Begin = Callable[[float], grpc.Future]
"""Begins a call with so many seconds to its deadline."""

LOST = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED})
"""Failures of one server: the other call may still be answered. Any other failure would only come twice."""


class HedgeBudget:
    """Bound on hedges: a tenth of all calls, and `most` more at once.

    Without it, clients of a slow server would double its load.
    """

    def __init__(self, share: float = 0.1, most: float = 10.0) -> None:
        self._share = share
        self._most = most
        self._left = most
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Count a call."""
        with self._lock:
            self._left = min(self._most, self._left + self._share)

    def spend(self) -> bool:
        """Take a hedge. False: none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


def first_answer(begin: Begin, timeout_s: float, hedge_after_s: float, budget: HedgeBudget) -> Any:
    """Answer of a call, or of a second one that begins after `hedge_after_s` seconds.

    Args:
        begin: begins a call on the next channel.
        timeout_s: seconds to the deadline of both.
        hedge_after_s: seconds that the first call has alone.
        budget: asked for the second.

    Raises:
        grpc.RpcError: no call was answered.
    """
    end = time.monotonic() + timeout_s
    done: SimpleQueue[Any] = SimpleQueue()
    calls: list[Any] = []

    def add() -> None:
        calls.append(begin(max(0.0, end - time.monotonic())))
        calls[-1].add_done_callback(done.put)

    budget.earn()
    add()
    try:
        try:
            first = done.get(timeout=hedge_after_s)
        except Empty:
            if budget.spend():
                add()
            first = done.get()
        # A failure of one server leaves the other call its chance.
        if len(calls) > 1 and first.code() in LOST:
            first = done.get()
        return first.result()
    finally:
        for call in calls:
            call.cancel()  # no effect on one that is done
