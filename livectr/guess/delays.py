"""Delays of clicks behind their impressions, and the durations of a label join that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.join_columns import Met
from livectr.guess.join_keys import whole
from livectr.guess.raw import RawLog
from livectr.ingest.language.streams import CLOCK_SLACK_MS
from livectr.logs.times import TimeForm, epoch_ms
from livectr.system.errors import ConfigError

MOST_SLACK_S = 30
"""Time before its impression from which a click is of another clock or column, and not measured."""
LATE_TAIL = 10
"""p99.9 by p99 above which the window is that of p99: few clicks would hold up all examples."""
MINUTE, HOUR, DAY = 60, 3600, 86_400
ZONE_S = 29 * MINUTE
"""Least difference of two time zones, but for a minute."""
NICE_S = (
    *(1, 2, 5, 10, 15, 20, 30, MINUTE, 2 * MINUTE, 3 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE),
    *(30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY, 7 * DAY, 30 * DAY),
)
"""Durations that a person would write."""
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Delays:
    """Delays of the sample's clicks behind their impressions, in milliseconds.

    Args:
        p01_ms, p50_ms, p90_ms, p99_ms, p999_ms: quantiles of each impression's first click.
        early: clicks that come before their impression.
        early_ms: time by which 99 of 100 of these do.
        matched: clicks with an impression, and behind it but for a clock's difference.
        lost: clicks so long before their impression that no clock's difference explains it.
        unmatched: clicks without one in the time that the sample of impressions covers; None: unknown.
    """

    p01_ms: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    p999_ms: int
    early: int
    early_ms: int
    matched: int
    lost: int
    unmatched: int | None

    @property
    def window_s(self) -> int:
        """Window of the label join: nearly all clicks come within it."""
        far = self.p999_ms if self.p999_ms <= LATE_TAIL * self.p99_ms else self.p99_ms
        return nice_s(1.05 * far)

    @property
    def wait_s(self) -> int | None:
        """Wait with `delayed="fnw"`, in which most clicks come; None: no shorter than the window."""
        found = nice_s(self.p90_ms)
        return found if found < self.window_s else None

    @property
    def slack_s(self) -> int | None:
        """Clock slack of the label join; None: that of every join is enough."""
        return nice_s(self.early_ms) if self.early_ms > CLOCK_SLACK_MS else None

    @property
    def are_shifted(self) -> bool:
        """True for delays that are all long and alike, as where clocks are a time zone apart."""
        return self.p01_ms >= 1000 * ZONE_S and self.p99_ms - self.p01_ms < 1000 * ZONE_S

    @property
    def words(self) -> str:
        """For a person."""
        return f"clicks {self._come}; {self.matched:,} clicks were measured"

    @property
    def words_of_others(self) -> str:
        """For a person, behind the name of other events than clicks."""
        return f"{self._come}; {self.matched:,} were measured"

    @property
    def _come(self) -> str:
        p50, p99, p999 = (seconds(ms) for ms in (self.p50_ms, self.p99_ms, self.p999_ms))
        return f"come after {p50} (p50), {p99} (p99), {p999} (p99.9)"


def delays_of(shown: RawLog, shown_ms: F64, clicked_ms: F64, met: Met) -> Delays:
    """Delays of the clicks.

    Args:
        shown: impressions.
        shown_ms: float64[n], times of the impressions; NaN where there is none.
        clicked_ms: float64[c], times of the clicks.
        met: clicks with their impressions.

    Raises:
        ConfigError: all clicks come before their impressions.
    """
    late = clicked_ms[met.clicked] - shown_ms[met.shown]
    timed = np.isfinite(late)
    early, behind = timed & (late < 0), timed & (late >= -1000 * MOST_SLACK_S)
    if not behind.any():
        least = seconds(-float(late[early].max(initial=-np.inf))) if early.any() else "no known time"
        raise ConfigError(
            f"all {len(late):,} clicks come before their impressions, by {least} and more; are these the "
            "right columns of times, and their units?"
        )
    of, after = met.shown[behind], np.maximum(late[behind], 0)
    order = np.lexsort((after, of))
    _, first = np.unique(of[order], return_index=True)
    ends = np.ceil(np.quantile(after[order][first], (0.01, 0.5, 0.9, 0.99, 0.999))).astype(int).tolist()
    unmatched = None
    if shown.sample.whole:
        unmatched = len(clicked_ms) - len(met.clicked)
    elif shown.brokers is None and (np.diff(shown_ms[np.isfinite(shown_ms)]) >= 0).all():
        inside = (clicked_ms >= np.nanmin(shown_ms)) & (clicked_ms <= np.nanmax(shown_ms))
        unmatched = int(inside.sum()) - int(inside[met.clicked].sum())
    return Delays(
        p01_ms=ends[0],
        p50_ms=ends[1],
        p90_ms=ends[2],
        p99_ms=ends[3],
        p999_ms=ends[4],
        early=int(early.sum()),
        early_ms=int(np.quantile(-late[early & behind], 0.99)) if (early & behind).any() else 0,
        matched=int(behind.sum()),
        lost=int((timed & ~behind).sum()),
        unmatched=unmatched,
    )


def milliseconds_of(values: pa.ChunkedArray, form: TimeForm) -> npt.NDArray[np.float64]:
    """Times in milliseconds; NaN where there is none."""
    found = epoch_ms(whole(values), form)
    return np.asarray(pc.fill_null(found.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False))


def nice_s(ms: float) -> int:
    """The least duration that a person would write, from `ms` on, in seconds."""
    return next((one for one in NICE_S if 1000 * one >= ms), -(-int(ms) // (1000 * DAY)) * DAY)


def written(duration_s: int) -> str:
    """Duration as `label_join` takes it: 90 is "90s", 120 is "2m"."""
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if duration_s % size == 0:
            return f"{duration_s // size}{unit}"
    return f"{duration_s}s"


def seconds(ms: float) -> str:
    """Duration for a person."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if ms >= 2000 * size:
            return f"{ms / 1000 / size:.1f} {unit}"
    return f"{ms / 1000:.1f} s"
