"""Parts of event times."""

from __future__ import annotations

from ingest.expr import Device, Expr, Operand, as_expr, mapped, need


def hour(ts_ms: Operand, utc_offset_hours: float = 0) -> Expr:
    """Hour of the day, 0 to 23, of epoch milliseconds: int32. UTC unless an offset is given.

    Example: `hour(log.ts, utc_offset_hours=8)`.
    """
    return _part("hour", ts_ms, utc_offset_hours)


def weekday(ts_ms: Operand, utc_offset_hours: float = 0) -> Expr:
    """Day of the week, 0 (Monday) to 6 (Sunday), of epoch milliseconds: int32. UTC unless an offset is given.

    Example: `weekday(log.ts)`.
    """
    return _part("weekday", ts_ms, utc_offset_hours)


def _part(op: str, ts_ms: Operand, utc_offset_hours: float) -> Expr:
    node = as_expr(ts_ms, op)
    need(op, node, ("int64",), "epoch milliseconds (int64)")
    offset = as_expr(round(utc_offset_hours * 3_600_000), op)
    return mapped(op, (node, offset), dtype="int32", device=Device(f"{op}_of({{0}}, {{1}})"))
