"""Windowed counters: their declaration.

A counter is a look-up table that the trainer writes itself: for each key a row with the impressions and
clicks of some times (kernels/stream/counters.cpp). An example, and a candidate of a request, look up their
key's row, and the same operator computes the counts of a window from it. So no window depends on when a row
was written, as long as it has all that was known by then.

An impression counts from the moment its label is known: after the label wait. So a click rate is of
impressions whose clicks had the time to come, in training as in serving.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from livectr.ingest.language.ages import Aged
from livectr.ingest.language.expr import ColumnRef

CELLS = 6
"""Cells of a window: its begin is rounded down by at most a sixth of it."""
MOST_LAG = 72
"""Grains by which labels may be known later than their impressions: twelve times the shortest window."""
KEY, ROW = "key", "row"


@dataclass(frozen=True)
class Counted:
    """Declaration of counters.

    Attributes:
        by: columns of the impressions that make a key.
        over_ms: lengths of the windows, rising.
        lag_ms: time after an impression at which it is counted, at most.
        max_bytes: memory of the counters on each rank.
    """

    maker: ClassVar[str] = "counts"

    by: tuple[str, ...]
    over_ms: tuple[int, ...]
    lag_ms: int
    max_bytes: int

    @property
    def topic(self) -> str:
        """Name of the table of rows."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return f"counts.{'+'.join(self.by)}.{digest}"

    @property
    def grain_ms(self) -> int:
        """Length of the finest cells."""
        return -(-self.over_ms[0] // CELLS)

    @property
    def spans(self) -> tuple[int, ...]:
        """Lengths in grains of the cells of each window; that of the shortest is 1."""
        return 1, *(-(-over // (CELLS * self.grain_ms)) for over in self.over_ms[1:])

    @property
    def lag(self) -> int:
        """Lag in grains."""
        return -(-self.lag_ms // self.grain_ms)

    @property
    def fine(self) -> int:
        """Finest cells of a key: the shortest window's, as of any time of the lag."""
        return CELLS + self.lag + 1


@dataclass(frozen=True)
class CountedRef(ColumnRef):
    """Reference to the rows of counters."""

    counted: Counted | Aged | None = None
