"""Progress of a new trainer through the part of the log that it learns again, before it is compared."""

from __future__ import annotations

import time
from collections.abc import Callable

from livectr.trainer.checkpoint.age import in_words


class CatchingUp:
    """Examples that are learned again; a pair of predictions shows that all of them are.

    Args:
        examples: that are learned again; 0: none.
        clock: seconds that never fall.

    Attributes:
        left: the same number, or 0 once the new trainer has caught up.
    """

    def __init__(self, examples: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.left = examples
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def look(self, pairs: int) -> None:
        """Take note of the pairs: both trainers have scored an example that was new to both."""
        if pairs:
            self.left = 0

    def line(self, learned: int) -> str:
        """Line on how it stands; "" once the new trainer has caught up.

        Args:
            learned: examples of the new trainer.
        """
        if not self.left:
            return ""
        now = self._clock()
        if self._first is None and learned:
            self._first = now, learned
        rate = 0.0
        if self._first is not None and now > self._first[0]:
            rate = (learned - self._first[1]) / (now - self._first[0])
        rest = max(0, self.left - learned)
        time_left = f", {in_words(rest / rate)} left" if rate and rest else ""
        return f"learns again: {min(learned, self.left):,} of {self.left:,} examples{time_left}"
