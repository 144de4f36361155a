"""Ages of the last events of keys as features."""

from __future__ import annotations

from typing import Literal, get_args

from livectr.ingest.language.ages import Aged
from livectr.ingest.language.counts import ROW, CountedRef
from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, column, need
from livectr.ingest.language.streams import View
from livectr.ingest.operators.cast import cast
from livectr.ingest.operators.counter_keys import By, key_columns
from livectr.ingest.operators.numbers import log1p
from livectr.system.byte_units import parse_bytes
from livectr.system.durations import duration_ms
from livectr.system.errors import ConfigError

MAX_BYTES = "256MiB"
Kind = Literal["impression", "click"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Ages:
    """Times since the last impression and the last click of a key, as features; made by `ages(log, …)`."""

    def __init__(self, aged: Aged, time: Expr) -> None:
        self.aged = aged
        self._row = column(CountedRef(aged.topic, ROW, table=True, counted=aged), "binary")
        self._time = time

    def seconds(self, kind: Kind, *, never: float = -1.0) -> Expr:
        """Seconds since the last event of the key, float64.

        Args:
            kind: "impression", or "click": an impression that was clicked. Both have the time of
                the impression.
            never: value where no event is known, or the last is longer ago than `within`.

        Raises:
            ConfigError: there is no such kind.
        """
        if kind not in KINDS:
            raise ConfigError(f"ages: there is no kind {kind!r}; the kinds are {', '.join(KINDS)}")
        aged = self.aged
        return last_age(
            self._row,
            self._time,
            grain_ms=aged.grain_ms,
            within_ms=aged.within_ms,
            kind=KINDS.index(kind),
            never=float(never),
        )

    def features(self, name: str) -> dict[str, Expr]:
        """Dense features of each kind: the logarithm of the age, and a mark where there is none.

        Args:
            name: beginning of the features' names.

        Returns:
            `{name}_{kind}_age` is ln(1 + seconds), and that of `within` where no event is known;
                `{name}_{kind}_never` is 1 there, else 0.
        """
        found = {}
        for kind in KINDS:
            oldest = self.aged.within_ms / 1000
            found[f"{name}_{kind}_age"] = log1p(self.seconds(kind, never=oldest))
            found[f"{name}_{kind}_never"] = cast(self.seconds(kind) < 0.0, "float32")
        return found


def ages(log: View, *, by: By, within: str = "30d", max_bytes: str | int = MAX_BYTES) -> Ages:
    """Keep when a key was last shown and last clicked, for its age as of each impression.

    An age at time t is of what was known then: impressions whose label wait ended before t, rounded down to a
    sixth of the wait and at least to a second. A request has the same ages as of its time.

    Args:
        log: labelled impressions with a time.
        by: column of the impressions, or several that make a key together: int64, int32, bool or string.
        within: age beyond which an event is forgotten.
        max_bytes: memory of the times on each rank. Beyond it the keys leave that were counted the longest
            ago.

    Raises:
        ConfigError: an argument is wrong, or the log has no times.

    Example: `ages(log, by="ad_id", within="30d").features("ad")`.
    """
    names = key_columns(log, by, "ages")
    aged = Aged(
        names,
        duration_ms(within, "ages within"),
        log.known_after_ms,
        parse_bytes(max_bytes, "ages max_bytes"),
    )
    if aged.within_ms <= aged.lag_ms:
        raise ConfigError(
            f"ages: within={within} is not longer than the {aged.lag_ms / 1000:g} s after which labels are "
            "known, so that no event would ever be seen; make it longer"
        )
    assert log.impressions.time is not None
    return Ages(aged, log.impressions[log.impressions.time])


def last_age(row: Expr, ts_ms: Expr, *, grain_ms: int, within_ms: int, kind: int, never: float) -> Expr:
    """Seconds from the last event of a kind until a time: float64.

    Args:
        row: binary, of kernels/stream/ages.hpp.
        ts_ms: time of the age. Events count that were known before it, rounded down to a grain.
        grain_ms: precision of that.
        within_ms: longest age.
        kind: place in `KINDS`.
        never: value without an event.
    """
    need("ages", row, ("binary",), "rows of ages")
    need("ages", ts_ms, ("int64",), "epoch milliseconds (int64)")
    params = (grain_ms, within_ms, kind, never)
    device = Device(
        "last_age({0}, {1}, {a[0]}, {a[1]}, {a[2]}, {a[3]})",
        arguments=tuple(zip(("int64", "int64", "int32", "float64"), params, strict=True)),
    )
    return Expr("last_age", (row, ts_ms), dtype="float64", device=device, params=params)
