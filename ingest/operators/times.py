"""Hour and weekday of event times, and times between events."""

from __future__ import annotations

from typing import Final, Literal

from livectr.ingest.language.device_code import Device
from livectr.ingest.language.expr import Expr, Operand, as_expr, mapped, need
from livectr.system.errors import ConfigError

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def hour(ts_ms: Operand, utc_offset_hours: float = 0) -> Expr:
    """Hour of the day, 0 to 23: int32.

    Args:
        ts_ms: epoch milliseconds (int64).
        utc_offset_hours: offset from UTC.

    Example: `hour(log.ts, utc_offset_hours=8)`.
    """
    return _part("hour", ts_ms, utc_offset_hours)


def weekday(ts_ms: Operand, utc_offset_hours: float = 0) -> Expr:
    """Day of the week, 0 (Monday) to 6 (Sunday): int32.

    Args:
        ts_ms: epoch milliseconds (int64).
        utc_offset_hours: offset from UTC.

    Example: `weekday(log.ts)`.
    """
    return _part("weekday", ts_ms, utc_offset_hours)


def age(ts_ms: Operand, since_ms: Operand, unit: Literal["s", "m", "h", "d"] = "h") -> Expr:
    """Time from an earlier moment to the event, (ts_ms - since_ms), as float32; negative for a later moment.

    A null time is 0, the year 1970: give it a `fill_null`, or bucketize the age so that the last bucket means
    "never".

    Args:
        ts_ms: time of the event, epoch milliseconds (int64).
        since_ms: the earlier moment, epoch milliseconds (int64).
        unit: "s", "m", "h" or "d".

    Example: `age(log.ts, ads.created_ts, unit="d")`.
    """
    event, since = as_expr(ts_ms, "age"), as_expr(since_ms, "age")
    for node in (event, since):
        need("age", node, ("int64",), "epoch milliseconds (int64)")
    if unit not in _UNIT_MS:
        raise ConfigError(f"age({event}, {since}): unit {unit!r} is not one of {', '.join(_UNIT_MS)}")
    device = Device(
        "(float)((double)subtract({0}, {1}) / {a[0]})", arguments=(("float64", float(_UNIT_MS[unit])),)
    )
    return mapped("age", (event, since), dtype="float32", device=device, params=(unit,))


def _part(op: str, ts_ms: Operand, utc_offset_hours: float) -> Expr:
    node = as_expr(ts_ms, op)
    need(op, node, ("int64",), "epoch milliseconds (int64)")
    offset = as_expr(round(utc_offset_hours * 3_600_000), op)
    return mapped(op, (node, offset), dtype="int32", device=Device(f"{op}_of({{0}}, {{1}})"))
