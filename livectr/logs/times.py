"""Columns that are times: their form, and their values as epoch milliseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.language.event_times import LIKELY
from livectr.logs.formats import iso_ms
from livectr.logs.values import STRAY
from livectr.system.errors import ConfigError

NAMED = re.compile(
    r"(^|_)(time|times|timestamp|ts|date|dt|datetime|day|hour|at|when)(_|$)|time$|timestamp", re.I
)
BEST = ("timestamp", "ts", "event_time", "time", "datetime", "event_timestamp", "date")
"""Names of a log's own time, the likeliest first."""
LOOK = 2_000
"""Values that are looked at: every k-th of a column."""
MS = LIKELY["s"][0] * 1000, LIKELY["s"][1] * 1000
SPANS = {"ms": MS, **LIKELY}
DIGITS = ("YYYYMMDDHH", "YYYYMMDD", "YYMMDDHH")
LEAST_S = 10_000_000
"""Epoch seconds below which a number is no time even where a user says so: it may count hours or days."""
MAGNITUDES = {"s": 1e11, "ms": 1e14, "us": 1e17}
"""Unit of a time of any year, by the numbers' magnitude."""
UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True)
class TimeForm:
    """Form of a column of times.

    Args:
        kind: "number" (epoch, of `unit`), "seconds" (with a fraction), "text" (ISO 8601), "timestamp"
            (typed), or the digits of a date: "YYYYMMDD", "YYYYMMDDHH" or "YYMMDDHH".
        unit: "s", "ms", "us" or "ns"; of numbers.
        likely: nearly all are from 2000 to 2100, so that another one is no time.
    """

    kind: str
    unit: str = "ms"
    likely: bool = True

    @property
    def words(self) -> str:
        """For a person."""
        of = {
            "number": f"epoch {UNITS[self.unit]}",
            "seconds": "epoch seconds with a fraction, milliseconds in the log",
            "text": "ISO 8601 texts, epoch milliseconds in the log",
            "timestamp": "typed as times, epoch milliseconds in the log",
        }
        return of.get(self.kind, f"dates written {self.kind} (UTC), epoch milliseconds in the log")

    @property
    def converted(self) -> bool:
        """True when the log has other values than the file: epoch milliseconds."""
        return self.kind != "number"


def form_of(values: pa.Array | pa.ChunkedArray, *, named: bool = False) -> TimeForm | None:
    """Form of a column's values; None: they are no times.

    Args:
        values: a column in its form (`livectr.logs.values`).
        named: a user says that they are times: numbers of any year may be.

    Raises:
        ConfigError: a user says so, and they are of several units.
    """
    some = values.take(_spread(len(values)))
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        return _as_likely(some, TimeForm("timestamp"))
    if pa.types.is_string(values.type):
        texts = [text for text in some.to_pylist() if text]
        times = sum(map(_is_time, texts))
        return _as_likely(some, TimeForm("text")) if texts and times >= (1 - STRAY) * len(texts) else None
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    numbers = np.asarray(some.drop_null().to_numpy(), np.float64)
    return _number_form(numbers[np.isfinite(numbers)], named)


def _as_likely(some: pa.Array | pa.ChunkedArray, form: TimeForm) -> TimeForm:
    found = milliseconds(some, replace(form, likely=False)).drop_null().to_numpy()
    return replace(form, likely=bool(len(found)) and _inside(np.asarray(found), MS) >= 1 - STRAY)


def _number_form(numbers: npt.NDArray[np.float64], named: bool) -> TimeForm | None:
    if not len(numbers):
        return None
    whole = bool((numbers == np.floor(numbers)).all())
    for digits in DIGITS if whole else ():
        dates = [_date_ms(int(number), digits) for number in numbers.tolist()]
        known = sum(date is not None and MS[0] <= date <= MS[1] for date in dates)
        if known >= (1 - STRAY) * len(dates):
            return TimeForm(digits)
    for unit, span in SPANS.items():
        if _inside(numbers, span) >= 1 - STRAY:
            return TimeForm("number", unit) if whole else TimeForm("seconds") if unit == "s" else None
    middle = float(np.quantile(np.abs(numbers), 0.5, method="lower"))  # a mean of two may overflow
    if not named or middle < LEAST_S:
        return None
    shares = {unit: _inside(numbers, span) for unit, span in SPANS.items()}
    mixed = [f"{share:.0%} {UNITS[unit]}" for unit, share in shares.items() if share > STRAY]
    if len(mixed) > 1:
        raise ConfigError(f"the times are of several units: {', '.join(mixed)}; write one unit.")
    unit = next((unit for unit, most in MAGNITUDES.items() if middle < most), "ns")
    return TimeForm("number" if whole or unit != "s" else "seconds", unit, likely=False)


def _inside(numbers: npt.NDArray[Any], span: tuple[float, float]) -> float:
    return float(((numbers >= span[0]) & (numbers <= span[1])).mean())


def _date_ms(number: int, digits: str) -> int | None:
    """Epoch milliseconds (UTC) of a date's digits; None: they are no date."""
    hour = 0
    if digits.endswith("HH"):
        number, hour = divmod(number, 100)
    year, month, day = number // 10_000, number // 100 % 100, number % 100
    try:
        moment = datetime(year + (0 if digits.startswith("YYYY") else 2000), month, day, hour, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return int(moment.timestamp() * 1000)


def _spread(count: int) -> pa.Array:
    return pa.array(np.arange(0, count, max(1, count // LOOK)))


def _is_time(text: str) -> bool:
    try:
        text_ms(text)
    except ValueError:
        return False
    return True


def text_ms(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 text, which may end with " UTC". Raises ValueError."""
    return iso_ms(text.strip().removesuffix(" UTC"))


def milliseconds(values: pa.Array | pa.ChunkedArray, form: TimeForm) -> pa.Array | pa.ChunkedArray:
    """Times as int64: as they are if they are numbers, else epoch milliseconds; null where there is none.

    Args:
        values: a column in its form.
        form: of its times.
    """
    if form.kind == "timestamp":
        found, span = _of_timestamps(values), MS
    elif form.kind == "text":
        known = {text: _text_or_none(text) for text in values.unique().to_pylist()}
        found, span = pa.array([known[text] for text in values.to_pylist()], pa.int64()), MS
    elif form.kind in DIGITS:
        of = {
            number: None if number is None else _digits_or_none(number, form.kind)
            for number in values.unique().to_pylist()
        }
        found, span = pa.array([of[number] for number in values.to_pylist()], pa.int64()), MS
    elif form.kind == "seconds":
        found = _rounded(pc.multiply(values.cast(pa.float64(), safe=False), 1000.0))
        span = MS
    else:
        found, span = _rounded(values), SPANS[form.unit]
    if not form.likely:
        return found
    inside = pc.and_(pc.greater_equal(found, int(span[0])), pc.less_equal(found, int(span[1])))
    return pc.if_else(pc.fill_null(inside, False), found, pa.scalar(None, pa.int64()))


def epoch_ms(values: pa.Array | pa.ChunkedArray, form: TimeForm) -> pa.Array | pa.ChunkedArray:
    """Epoch milliseconds, whatever the unit; null where there is none."""
    found = milliseconds(values, form)
    if form.kind != "number" or form.unit == "ms":
        return found
    if form.unit == "s":
        return pc.multiply(found, 1000)
    return pc.divide(found, 1000 if form.unit == "us" else 1_000_000)


def _of_timestamps(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    exact = pa.types.is_timestamp(values.type) and values.type.unit == "s"  # others are divided: no overflow
    try:
        return values.cast(pa.timestamp("ms"), safe=exact).cast(pa.int64())
    except pa.ArrowInvalid:
        seconds = values.cast(pa.int64()).to_pylist()
        return pa.array(
            [one * 1000 if one is not None and abs(one) < 1 << 53 else None for one in seconds], pa.int64()
        )


def _rounded(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Numbers as int64; null where they are not finite, or beyond it."""
    if not pa.types.is_floating(values.type):
        return values.cast(pa.int64())
    inside = pc.and_(pc.is_finite(values), pc.less(pc.abs(values), float(1 << 62)))
    kept = pc.if_else(pc.fill_null(inside, False), values, pa.scalar(None, values.type))
    return pc.round(kept).cast(pa.int64())


def _digits_or_none(number: float, digits: str) -> int | None:
    whole = isinstance(number, int) or (np.isfinite(number) and number == int(number))
    return _date_ms(int(number), digits) if whole else None


def _text_or_none(text: str | None) -> int | None:
    try:
        return None if text is None else text_ms(text)
    except (ValueError, OverflowError):
        return None


def shown(ms: int) -> str:
    """Time for a person, in UTC."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
