"""Turns of slots: event times at which their vectors were computed, and the slots that are due."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NEVER = -1
_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, are spread evenly, however many there are."""

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def phase(number: int) -> float:
    """Phase of a slot in the period, from 0 to 1."""
    return number * _GOLDEN % 1.0


class Turns:
    """Slots of one refresh; each is due once in a period of event time.

    Args:
        period_ms: of event time.
    """

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._times: I64 = np.empty(0, np.int64)
        """Event time of each slot; 0: before the first example, NEVER: not computed yet."""

    def grow(self, slots: int) -> None:
        """Make room for slots that were never computed."""
        self._times = np.append(self._times, np.full(slots - len(self._times), NEVER))

    def date(self, first_ms: int) -> None:
        """Date vectors of before the first example at its event time: later steps have moved the model on."""
        self._times[self._times == 0] = first_ms

    def due(self, phases: Sequence[float], now_ms: int) -> Bools:
        """Mask of the slots that were never computed, or whose turn has come since."""
        period = self._period_ms
        shift = (np.array(phases) * period).astype(np.int64)
        due: Bools = (self._times == NEVER) | ((now_ms + shift) // period > (self._times + shift) // period)
        return due

    def computed(self, slots: Sequence[int] | I64, now_ms: int) -> None:
        """Note the event time of slots that a served version has computed."""
        self._times[slots] = now_ms

    def oldest_s(self, now_ms: int) -> float:
        """Seconds of event time since the oldest slot was computed; 0 before the first example."""
        oldest = int(self._times.min(initial=now_ms)) if now_ms else 0
        return (now_ms - oldest) / 1000 if oldest > 0 else 0.0
