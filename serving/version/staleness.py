"""Staleness of a server: the time for which it has not been known to serve the newest version.

The follower looks at Redis twice a second. A look is good when it ends with the newest published version
being served. A trainer that publishes nothing makes no server stale; a server that cannot read Redis, or
cannot load what was published, becomes stale.

    fresh ─► stale   no good look for `max_stale_s`, and LOOKS bad looks in a row. A look that does not end
                     counts as bad after HANGS times `max_stale_s`
    stale ─► fresh   BACK good looks in a row

So one slow look, such as the load of a large version, does not make a server unready, and a Redis that
answers now and then does not make it flap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOKS, BACK, HANGS = 3, 2, 3


class Staleness:
    """Policy with hysteresis. Thread-safe.

    Args:
        max_stale_s: bound in seconds; 0: never stale.
        clock: monotonic seconds.
    """

    def __init__(self, max_stale_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_stale_s, self._clock = max_stale_s, clock
        self._lock = threading.Lock()
        self._last_good = clock()
        self._good = self._bad = 0
        self._stale = False

    def record(self, good: bool) -> None:
        """Record the end of a look."""
        with self._lock:
            self._good, self._bad = (self._good + 1, 0) if good else (0, self._bad + 1)
            if good:
                self._last_good = self._clock()

    @property
    def age_s(self) -> float:
        """Seconds since the last good look, or since the start."""
        return self._clock() - self._last_good

    @property
    def stale(self) -> bool:
        """True while the server should get no requests."""
        with self._lock:
            if self._max_stale_s and not self._stale:
                bound = self._max_stale_s if self._bad >= LOOKS else HANGS * self._max_stale_s
                self._stale = self.age_s > bound
            elif self._stale:
                self._stale = self._good < BACK
            return self._stale
