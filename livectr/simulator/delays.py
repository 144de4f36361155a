"""Delays of the simulated clicks: ads differ, and an ad's delays swing in time.

    mean(ad, t) = mean · exp(√2 spread sin(2π (phase(ad) + t / period)))

Phases are uniform, so that at any time the logarithms of the ads' mean delays have the standard deviation
`spread`. Without a period they stay.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd, near 2⁶⁴ over the golden ratio: phases of consecutive ads are far apart."""


@dataclass(frozen=True)
class ClickDelays:
    """Mean delays of the ads' clicks.

    Args:
        mean: over all ads, in label windows. A click that counts comes within 0.05 to 0.95 of a window.
        spread: standard deviation of the logarithm over ads.
        period_s: event time of a swing; 0: an ad's mean delay stays.
    """

    mean: float = 0.2
    spread: float = 0.0
    period_s: float = 0.0

    def means(self, ad_id: I64, ts: I64) -> F64:
        """Mean delays of clicks in label windows, f64[n]; ad_id: int64[n], ts: int64[n] in ms."""
        phase = (ad_id.astype(np.uint64) * MIX >> np.uint64(11)) / 2.0**53
        if self.period_s:
            phase = phase + ts / (1000 * self.period_s)
        return np.asarray(self.mean * np.exp(np.sqrt(2) * self.spread * np.sin(2 * np.pi * phase)))
