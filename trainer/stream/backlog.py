"""Backlog of a run: rows of its logs that are not learned, the rate at which they go, and the time left.

Rows count until they are learned, but for those that wait out a label window. So the numbers move while a
rank learns what it has read, and reads nothing. Every rank puts its own into its header, so that rank 0 sees
all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from livectr.trainer.stream import telemetry
from livectr.trainer.stream.header import Flags

LOOK_EVERY_S = 1.0
RATE_OVER_S = 10.0
"""Time over which the rate is measured."""
SHOWN_FROM_S = 5.0
"""Time left from which a run counts as catching up."""


class Reads(Protocol):
    """Source, as the backlog sees it."""

    @property
    def behind(self) -> int:
        """Rows of this rank's partitions that are not read, approximately."""

    @property
    def held(self) -> int:
        """Rows that are read and wait for those of another topic, and examples that are ready."""

    @property
    def delivered(self) -> int:
        """Rows that were read."""

    @property
    def unread(self) -> int:
        """`behind`, without topic partitions that are paused."""

    def tell(self) -> None:
        """Bring the gauges of reading up to date."""


class Own(NamedTuple):
    """Numbers of a rank (trainer.stream.header.Flags)."""

    behind: int = 0
    done: int = 0
    unread: int = 0


class Backlog:
    """Rows behind, over all ranks.

    Args:
        source: of this rank.
        clock: seconds that never fall.
    """

    def __init__(self, source: Reads, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._own = Own()
        self._looked_s = -LOOK_EVERY_S
        self._seen: deque[tuple[float, int, int]] = deque()  # (instant, rows behind, rows done) of all ranks

    @property
    def own(self) -> Own:
        """Numbers of this rank, at most LOOK_EVERY_S old; the gauges of reading are as new."""
        if self._clock() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = self._clock()
            source, held = self._source, self._source.held
            source.tell()
            self._own = Own(source.behind + held, source.delivered - held, source.unread)
        return self._own

    def observe(self, flags: Sequence[Flags]) -> None:
        """Take the headers of all ranks."""
        now = self._clock()
        if self._seen and now - self._seen[-1][0] < LOOK_EVERY_S:
            return
        self._seen.append((now, sum(f.behind for f in flags), sum(f.done for f in flags)))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_OVER_S:
            self._seen.popleft()
        telemetry.BACKLOG_ROWS.set(self.rows)
        if self.rows and len(self._seen) < 2:
            return
        telemetry.BACKLOG_SECONDS.set(self.left_s if self.left_s is not None else -1)

    @property
    def rows(self) -> int:
        """Rows of all ranks that are not learned; of files an estimate from their bytes."""
        return self._seen[-1][1] if self._seen else 0

    @property
    def rate(self) -> float:
        """Rows a second that all ranks have done."""
        passed = self._seen[-1][0] - self._seen[0][0] if self._seen else 0.0
        return (self._seen[-1][2] - self._seen[0][2]) / passed if passed > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until nothing is behind, with what arrives meanwhile; None while rows do not grow fewer.

        A few rows are always on their way in a live log: they take as long as the rate says.
        """
        if not self.rows:
            return 0.0
        if self.rows < self.rate * SHOWN_FROM_S:
            return self.rows / self.rate
        passed = self._seen[-1][0] - self._seen[0][0]
        fewer = self._seen[0][1] - self._seen[-1][1]
        return self.rows * passed / fewer if fewer > 0 else None

    def line(self) -> str:
        """Text for the status line; "" unless the run is catching up."""
        if len(self._seen) < 2 or not self.rows or self.rows < self.rate * SHOWN_FROM_S:
            return ""
        text = f"{self.rows:,} rows behind, {self.rate:,.0f} rows/s"
        if self.left_s is None:
            return f"{text}, growing"
        minutes, seconds = divmod(round(self.left_s), 60)
        hours, minutes = divmod(minutes, 60)
        left = f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds} s"
        return f"{text}, {left} left"
