"""Columns that are times: their form, and their values as epoch milliseconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.columns import STRAY
from livectr.ingest.language.event_times import LIKELY
from livectr.logs.formats import iso_ms

NAMED = re.compile(
    r"(^|_)(time|times|timestamp|ts|date|datetime|day|hour|at|when)(_|$)|time$|timestamp", re.I
)
BEST = ("timestamp", "ts", "event_time", "time", "datetime", "event_timestamp", "date")
"""Names of a log's own time, the likeliest first."""
LOOK = 2_000
"""Values that are looked at: every k-th of a column."""
MS = LIKELY["s"][0] * 1000, LIKELY["s"][1] * 1000
UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True)
class TimeForm:
    """Form of a column of times.

    Args:
        kind: "number" (epoch, of `unit`), "seconds" (with a fraction), "text" (ISO 8601) or "timestamp".
        unit: "s", "ms", "us" or "ns"; of numbers.
    """

    kind: str
    unit: str = "ms"

    @property
    def words(self) -> str:
        """For a person."""
        of = {
            "number": f"epoch {UNITS[self.unit]}",
            "seconds": "epoch seconds with a fraction, milliseconds in the log",
            "text": "ISO 8601 texts, epoch milliseconds in the log",
        }
        return of.get(self.kind, "typed as times, epoch milliseconds in the log")

    @property
    def converted(self) -> bool:
        """True when the log has other values than the file: epoch milliseconds."""
        return self.kind != "number"


def form_of(values: pa.Array | pa.ChunkedArray) -> TimeForm | None:
    """Form of a column's values; None: they are no times.

    Args:
        values: a column as it was read; numbers may be texts.
    """
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        return TimeForm("timestamp")
    some = [value for value in values.take(_spread(len(values))).to_pylist() if value is not None]
    if not some or isinstance(some[0], bool):
        return None
    if isinstance(some[0], str):
        fitting = [text for text in some if _is_number(text)]
        if len(fitting) < (1 - STRAY) * len(some):
            times = sum(map(_is_time, some))
            return TimeForm("text") if times >= (1 - STRAY) * len(some) else None
        some = fitting
    try:
        numbers = np.array(some, np.float64)
    except (ValueError, TypeError):
        return None
    return _number_form(numbers)


def _number_form(numbers: np.ndarray[tuple[int], np.dtype[np.float64]]) -> TimeForm | None:
    ranges = {"ms": MS, **LIKELY}
    for unit, (least, most) in ranges.items():
        if least <= numbers.min() and numbers.max() <= most:
            if (numbers == np.floor(numbers)).all():
                return TimeForm("number", unit)
            return TimeForm("seconds") if unit == "s" else None
    return None


def _spread(count: int) -> pa.Array:
    return pa.array(np.arange(0, count, max(1, count // LOOK)))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*-?\d+(\.\d+)?([eE][+-]?\d+)?\s*", text) is not None


def _is_time(text: str) -> bool:
    try:
        text_ms(text)
    except ValueError:
        return False
    return True


def text_ms(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 text, which may end with " UTC". Raises ValueError."""
    return iso_ms(text.strip().removesuffix(" UTC"))


def milliseconds(values: pa.Array, form: TimeForm) -> pa.Array:
    """Times as int64: as they are if they are numbers, else epoch milliseconds; null where there is none.

    Args:
        values: a column as it was read.
        form: of its values.
    """
    if form.kind == "timestamp":
        return values.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    if form.kind == "text":
        known = {text: _text_or_none(text) for text in values.unique().to_pylist()}
        return pa.array([known[text] for text in values.to_pylist()], pa.int64())
    numbers = _numbers(values, pa.float64() if form.kind == "seconds" else pa.int64())
    if form.kind == "seconds":
        return pc.cast(pc.round(pc.multiply(numbers, 1000.0)), pa.int64())
    return numbers


def _text_or_none(text: str | None) -> int | None:
    try:
        return None if text is None else text_ms(text)
    except (ValueError, OverflowError):
        return None


def _numbers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_number_or_none(value, kind) for value in values.to_pylist()], kind)


def _number_or_none(value: object, kind: pa.DataType) -> float | int | None:
    try:
        number = float(str(value))
        return int(number) if kind == pa.int64() else number
    except (ValueError, OverflowError):
        return None


def shown(ms: int) -> str:
    """Time for a person, in UTC."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
