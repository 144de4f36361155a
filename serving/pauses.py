"""Pauses of the process, as requests feel them (the method of jHiccup).

The time of a request starts with its handler. A request that comes while the process does not run (a CPU
limit, swapping, a held interpreter lock, SIGSTOP) waits in the kernel or in gRPC, and no handler measures it.
A client that waits for this answer sends no other request, so that slow requests are few, too.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import numpy as np

from livectr.serving.metrics import PAUSES

INTERVAL_S = 0.05


class PauseClock:
    """Thread that observes pauses while it is entered.

    It is due every `INTERVAL_S`. It observes its delay for each time at which it was due, also for times
    within a pause. Requests come at any moment: the share of long delays is the share of requests that wait
    so long.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pauses", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        ended = False
        while not ended:
            ended = self._ended.wait(max(0.0, due - time.monotonic()))
            late_s = time.monotonic() - due
            if late_s >= 0:  # a pause that ends with the clock counts, too
                times = int(late_s / INTERVAL_S) + 1
                delay_s = np.asarray(late_s - INTERVAL_S * np.arange(times), np.float64)
                PAUSES.observe(delay_s, np.ones(times, np.int64))
                due += times * INTERVAL_S
