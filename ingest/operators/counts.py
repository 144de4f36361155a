"""Windowed counters of keys as features."""

from __future__ import annotations

from collections.abc import Mapping

from livectr.ingest.language.counts import MOST_LAG, ROW, Counted, CountedRef
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, column, need
from livectr.ingest.language.streams import View
from livectr.ingest.operators.counter_keys import By, key_columns
from livectr.ingest.operators.numbers import log1p
from livectr.system.byte_units import parse_bytes
from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

MAX_BYTES = "256MiB"


class Counts:
    """Impressions and clicks of a key in some windows, as features; made by `counts(log, …)`.

    Attributes:
        impressions: window → impressions whose label is known, int64.
        clicks: window → clicks of these, int64.
    """

    def __init__(self, counted: Counted, over: tuple[str, ...], time: Expr) -> None:
        row = column(CountedRef(counted.topic, ROW, table=True, counted=counted), "binary")
        self.counted = counted
        found: list[dict[str, Expr]] = []
        for clicks in (False, True):
            windows = enumerate(zip(over, counted.over_ms, counted.spans, strict=True))
            found.append(
                {
                    name: window_count(
                        row,
                        time,
                        grain_ms=counted.grain_ms,
                        ring=ring,
                        span=span,
                        window_ms=length,
                        clicks=clicks,
                    )
                    for ring, (name, length, span) in windows
                }
            )
        self.impressions: Mapping[str, Expr] = found[0]
        self.clicks: Mapping[str, Expr] = found[1]

    def rate(self, window: str, *, prior: float = 0.05, strength: float = 20) -> Expr:
        """Click rate of a window, smoothed: (clicks + strength · prior) / (impressions + strength), float64.

        Args:
            window: as in `over`.
            prior: rate of a key without impressions, such as that of the whole log.
            strength: impressions that weigh as much as the prior.

        Raises:
            ConfigError: there is no such window, or a number is out of range.
        """
        if window not in self.clicks:
            raise ConfigError(
                f"counts: there is no window {window!r}; the windows are {', '.join(self.clicks)}"
            )
        if not 0 < prior < 1 or not 0 < strength < float("inf"):
            raise ConfigError(
                f"counts: prior={prior} must be between 0 and 1, and strength={strength} above 0"
            )
        return (self.clicks[window] + float(strength * prior)) / (self.impressions[window] + float(strength))

    def features(self, name: str, *, prior: float = 0.05, strength: float = 20) -> dict[str, Expr]:
        """Dense features of each window: logarithms of the counts, and the smoothed rate against the prior.

        Args:
            name: beginning of the features' names.
            prior: as `rate`.
            strength: as `rate`.

        Returns:
            `{name}_clicks_{window}`, `{name}_impressions_{window}` and `{name}_rate_{window}`, the last as
                ln(1 + rate / prior), so that rare and frequent clicks are on one scale.
        """
        found = {}
        for window in self.clicks:
            found[f"{name}_clicks_{window}"] = log1p(self.clicks[window])
            found[f"{name}_impressions_{window}"] = log1p(self.impressions[window])
            found[f"{name}_rate_{window}"] = log1p(
                self.rate(window, prior=prior, strength=strength) / float(prior)
            )
        return found


def counts(
    log: View,
    *,
    by: By,
    over: str | tuple[str, ...],
    max_bytes: str | int = MAX_BYTES,
) -> Counts:
    """Count the impressions and clicks of a key in windows of event time, as of each impression.

    A window of an impression at time t has what was known then: impressions whose label wait ended before t,
    and their clicks. It ends at t, rounded down to a sixth of the shortest window, and begins at t minus its
    length, rounded down by at most a sixth of its own length. A request has the same windows as of its time.

    Args:
        log: labelled impressions with a time.
        by: column of the impressions, or several that make a key together: int64, int32, bool or string.
        over: lengths of the windows, such as ("10m", "1h", "1d", "7d").
        max_bytes: memory of the counters on each rank. Beyond it the keys leave that were counted the longest
            ago.

    Raises:
        ConfigError: an argument is wrong, or the log has no times.

    Example: `counts(log, by="ad_id", over=("10m", "1h", "1d")).features("ad")`.
    """
    names = key_columns(log, by, "counts")
    windows = (over,) if isinstance(over, str) else tuple(over)
    lengths = [duration_ms(window, "counts over") for window in windows]
    if not lengths or sorted(set(lengths)) != lengths:
        raise ConfigError(f"counts: over must be windows that get longer, not {', '.join(map(str, windows))}")
    counted = Counted(names, tuple(lengths), log.known_after_ms, parse_bytes(max_bytes, "counts max_bytes"))
    if counted.lag > MOST_LAG:
        raise ConfigError(
            f"counts: labels are known {log.known_after_ms / 1000:g} s after their impressions, more than 12 "
            f"times the shortest window {windows[0]}; leave out the windows that are so short"
        )
    assert log.impressions.time is not None
    return Counts(counted, tuple(map(str, windows)), log.impressions[log.impressions.time])


def window_count(
    row: Expr, ts_ms: Expr, *, grain_ms: int, ring: int, span: int, window_ms: int, clicks: bool
) -> Expr:
    """Impressions, or clicks, of a window before a time: int64.

    Args:
        row: binary, of kernels/stream/counters.cpp.
        ts_ms: end of the window, rounded down to a grain.
        grain_ms: length of the finest cells.
        ring: of the window; 0 has the finest cells alone.
        span: length in grains of the window's cells.
        window_ms: length of the window. Its begin is rounded down to a cell.
        clicks: count clicks, else impressions.
    """
    need("counts", row, ("binary",), "rows of counters")
    need("counts", ts_ms, ("int64",), "epoch milliseconds (int64)")
    params = (grain_ms, ring, span, window_ms, int(clicks))
    device = Device(
        "window_count({0}, {1}, {a[0]}, {a[1]}, {a[2]}, {a[3]}, {a[4]} != 0)",
        arguments=tuple(zip(("int64", "int32", "int64", "int64", "int32"), params, strict=True)),
    )
    return Expr("window_count", (row, ts_ms), dtype="int64", device=device, params=params)
