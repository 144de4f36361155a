"""Ages of last events: their declaration.

An age is a counter (`ingest.language.counts`) whose rows have times in place of counts: of a key's last
impression, and of its last one with a click (kernels/stream/ages.hpp). An event is known once its label is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

LAGS = 6
"""Grains of the label wait: an event is seen at most a sixth of the wait after it is known."""
LEAST_GRAIN_MS = 1_000


@dataclass(frozen=True)
class Aged:
    """Declaration of ages.

    Attributes:
        by: columns of the impressions that make a key.
        within_ms: age beyond which an event is forgotten.
        lag_ms: time after an impression at which it is known, at most.
        max_bytes: memory of the times on each rank.
    """

    maker: ClassVar[str] = "ages"

    by: tuple[str, ...]
    within_ms: int
    lag_ms: int
    max_bytes: int

    @property
    def topic(self) -> str:
        """Name of the table of rows."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return f"ages.{'+'.join(self.by)}.{digest}"

    @property
    def grain_ms(self) -> int:
        """Precision of the time as of which events are seen."""
        return max(LEAST_GRAIN_MS, -(-self.lag_ms // LAGS))

    @property
    def lag(self) -> int:
        """Lag in grains, at most `LAGS`."""
        return -(-self.lag_ms // self.grain_ms)

    @property
    def within(self) -> int:
        """Longest age in grains."""
        return -(-self.within_ms // self.grain_ms)
