"""Seconds of a step against bandwidth, by the sum of computing and wire, and where two of these lines cross.

    seconds(C) = computing + 8 · FRAMING · bytes / C

`bytes` are of the wire and direction with most of them, C is the bandwidth of each wire. Computing does not
overlap with the wire here. Measured steps are faster where ranks share cores and one computes while another
waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from livectr.plan.trainer import FRAMING as FRAMING


@dataclass(frozen=True)
class Line:
    """Prediction of a contestant.

    Attributes:
        computing: seconds of a step without a limit
        sent: bytes of a step on the busiest wire, in its busier direction
    """

    computing: float
    sent: float

    @property
    def bits(self) -> float:
        """Gbit of a step on the busiest wire."""
        return 8e-9 * FRAMING * self.sent

    def seconds(self, gbit: float | None) -> float:
        """Seconds of a step at a bandwidth in Gbit/s; None: no limit."""
        return self.computing + (0.0 if gbit is None else self.bits / gbit)

    def on_cores(self, share: float) -> Line:
        """The same bytes with a share of the computing's seconds."""
        return Line(self.computing * share, self.sent)


def crossing(a: Line, b: Line) -> float | None:
    """Gbit/s at which two contestants are equally fast; None where one is ahead at every bandwidth."""
    slower = b.computing - a.computing
    if slower == 0 or (found := (a.bits - b.bits) / slower) <= 0:
        return None
    return found


def measured_crossing(a: Mapping[float | None, float], b: Mapping[float | None, float]) -> float | None:
    """Crossing of measured seconds by bandwidth, linear in 1 / bandwidth between neighbours.

    Returns:
        Gbit/s, the highest of several; infinity: equal seconds without a limit; None: one is always ahead.
    """
    slowness = sorted((0.0 if gbit is None else 1 / gbit, a[gbit] - b[gbit]) for gbit in a)
    for (x, left), (y, right) in itertools.pairwise(slowness):
        if left == 0 or left * right < 0:
            at = x + (y - x) * left / (left - right) if left else x
            return 1 / at if at else float("inf")
    return None
