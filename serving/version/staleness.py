"""Staleness of a server: the time for which it has not been known to serve the newest version.

The follower polls Redis twice a second. A poll is good when it ends with the newest published version
being served. A trainer that publishes nothing makes no server stale; a server that cannot read Redis, or
cannot load what was published, becomes stale.

    fresh ─► stale   no good poll for `max_stale_s`, and BAD_POLLS bad polls in a row. A poll that hangs
                     counts as bad after HANG_FACTOR times `max_stale_s`
    stale ─► fresh   GOOD_POLLS good polls in a row

So one slow poll, such as the load of a large version, does not make a server unready, and a Redis that
answers now and then does not make it flap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BAD_POLLS = 3
"""Bad polls in a row that make a server stale."""
GOOD_POLLS = 2
"""Good polls in a row that make a stale server fresh."""
HANG_FACTOR = 3
"""Times `max_stale_s` after which a poll that hangs counts as bad."""


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
        """Record the end of a poll."""
        with self._lock:
            self._good, self._bad = (self._good + 1, 0) if good else (0, self._bad + 1)
            if good:
                self._last_good = self._clock()

    @property
    def age_s(self) -> float:
        """Seconds since the last good poll, or since the start."""
        return self._clock() - self._last_good

    @property
    def stale(self) -> bool:
        """True while the server should get no requests."""
        with self._lock:
            if self._max_stale_s and not self._stale:
                bound = self._max_stale_s if self._bad >= BAD_POLLS else HANG_FACTOR * self._max_stale_s
                self._stale = self.age_s > bound
            elif self._stale:
                self._stale = self._good < GOOD_POLLS
            return self._stale
