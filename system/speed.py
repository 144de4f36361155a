"""Speed of a count that grows in bursts: the mean of the last seconds, for gauges that many read."""

from __future__ import annotations

from collections import deque

OVER_S = 10.0
"""Time that a speed is the mean of."""
EVERY_S = 1.0
"""Time after which it changes."""


class Speed:
    """Growth of a count per second, over the last OVER_S, or since the first look while that is less ago.

    Two looks of a reader would fall into a burst or between two; the owner of the count looks all the time.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()  # (instant, count)

    def observe(self, now_s: float, count: float) -> float:
        """Take the count of an instant.

        Args:
            now_s: seconds of a clock that never falls.
            count: at this instant.

        Returns:
            The speed, at most EVERY_S old; 0.0 in the first EVERY_S.
        """
        if not self._seen or now_s - self._seen[-1][0] >= EVERY_S:
            self._seen.append((now_s, count))
        while len(self._seen) > 2 and self._seen[-1][0] - self._seen[1][0] >= OVER_S:
            self._seen.popleft()
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0
