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

from livectr.ingest.language.event_times import EARLIEST_MS, LATEST_MS, LIKELY
from livectr.logs.formats import iso_ms
from livectr.logs.values import STRAY, Form, are_rounded, read, with_digits
from livectr.system.errors import ConfigError
from livectr.system.texts import visible

NAMED = re.compile(
    r"(^|_)(time|times|timestamp|ts|date|dt|datetime|day|hour|at|when)(_|$)|time$|timestamp", re.I
)
BEST = ("timestamp", "ts", "event_time", "time", "datetime", "event_timestamp", "date")
"""Names of a log's own time, the likeliest first."""
LOOK = 2_000
"""Values that are looked at: every k-th of a column."""
MOSTLY = 0.5
"""Share of times from which a column with the name of a log's own time is spoiled, and not something else."""
PER_S = {"ms": 10**3, "s": 1, "us": 10**6, "ns": 10**9}
SINCE_2000, SINCE_1973 = LIKELY["s"][0], 10**8
"""Seconds from which on the times of a column are; no unit's numbers since then are those of another's."""
UNTIL_S = LIKELY["s"][1]
DIGITS = (
    *("YYYYMMDDHHMMSSmmm", "YYYYMMDDHHMMSS", "YYYYMMDDHHMM", "YYYYMMDDHH", "YYYYMMDD"),
    *("YYMMDDHHMMSS", "YYMMDDHH"),
)
DAY_FIRST = {"DDMMYYYY": (0, 2), "MMDDYYYY": (2, 0)}
"""Dates whose year is last: where day and month begin. Which of them it is cannot be told of many days."""
LEAST_S = 10_000_000
"""Epoch seconds below which a number is no time even where a user says so: it may count hours or days."""
MAGNITUDES = {"s": 1e11, "ms": 1e14, "us": 1e17}
"""Unit of a time of any year, by the numbers' magnitude."""
NO_TIME = "no epoch time of 2000 to 2100 and no ISO 8601 date"
UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True)
class TimeForm:
    """Form of a column of times.

    Args:
        kind: "number" (epoch, of `unit`), "seconds" (with a fraction), "text" (ISO 8601), "timestamp"
            (typed), or one of DIGITS.
        unit: "s", "ms", "us" or "ns"; of numbers.
        since_s: SINCE_2000 or SINCE_1973, up to 2100: another one is no time. None: the years 1 to 9999.
    """

    kind: str
    unit: str = "ms"
    since_s: int | None = SINCE_2000

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
    def span(self) -> tuple[int, int]:
        """Least and greatest number, in the unit; typed times and texts have milliseconds."""
        per = PER_S[self.unit if self.kind == "number" else "ms"]
        if self.since_s is not None:
            return _span(self.since_s, per)
        return max(EARLIEST_MS * per // 1000, -(2**63)), min(LATEST_MS * per // 1000, 2**63 - 1)

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


def check_digits(name: str, values: pa.Array | pa.ChunkedArray, form: Form) -> None:
    """Raise ConfigError for times that have lost digits: in a spreadsheet, or as 32-bit floats.

    Args:
        name: of the column.
        values: of the column.
        form: of its texts.
    """
    if pa.types.is_float32(values.type) and are_rounded(values):
        raise ConfigError(
            f"--time: column {name!r} holds 32-bit floats, in which these times have lost digits: write "
            "whole numbers or 64-bit floats."
        )
    if form.rounded:
        raise ConfigError(
            f"--time: column {name!r} holds numbers such as 1.764E+12, which have lost digits: write whole "
            "numbers, or 2026-11-25T08:00:00."
        )


def _as_likely(some: pa.Array | pa.ChunkedArray, form: TimeForm) -> TimeForm:
    found = milliseconds(some, replace(form, since_s=None)).drop_null().to_numpy()
    return _since(np.asarray(found, np.float64), form)


def _number_form(numbers: npt.NDArray[np.float64], named: bool) -> TimeForm | None:
    if not len(numbers):
        return None
    whole = bool((numbers == np.floor(numbers)).all())
    for digits in DIGITS if whole else ():
        if not _inside_digits(numbers, digits):
            continue
        dates = [_date_ms(int(number), digits) for number in numbers.tolist()]
        known = sum(date is not None and _is_inside(date, SINCE_2000, 1000) for date in dates)
        if known >= (1 - STRAY) * len(dates):
            return TimeForm(digits)
    for unit, per in PER_S.items():
        if _inside(numbers, SINCE_2000, per) >= 1 - STRAY:
            return TimeForm("number", unit) if whole else TimeForm("seconds") if unit == "s" else None
    middle = _middle(np.abs(numbers))
    if not named or middle < LEAST_S:
        return None
    for digits, (day, month) in DAY_FIRST.items() if whole else ():
        if numbers.max() >= 10**8:
            break
        dates = [_year_last_ms(int(number), day, month) for number in numbers.tolist()]
        if sum(date is not None for date in dates) >= (1 - STRAY) * len(dates):
            raise ConfigError(
                f"{int(numbers[0]):08d} looks like a date written {digits}; write it as YYYYMMDD."
            )
    shares = {unit: _inside(numbers, SINCE_1973, per) for unit, per in PER_S.items()}
    mixed = [f"{share:.0%} {UNITS[unit]}" for unit, share in shares.items() if share > STRAY]
    if len(mixed) > 1:
        raise ConfigError(f"the times are of several units: {', '.join(mixed)}; write one unit.")
    unit = next((unit for unit, most in MAGNITUDES.items() if middle < most), "ns")
    return _since(numbers, TimeForm("number" if whole or unit != "s" else "seconds", unit))


def _since(numbers: npt.NDArray[np.float64], form: TimeForm) -> TimeForm:
    """The form, for times since 2000 or 1973 if most are: then a 0 means that there is none."""
    per = PER_S[form.unit]
    if len(numbers) and _inside(numbers, SINCE_2000, per) >= 1 - STRAY:
        return replace(form, since_s=SINCE_2000)
    recent = len(numbers) > 0 and _is_inside(_middle(numbers), SINCE_1973, per)
    return replace(form, since_s=SINCE_1973 if recent else None)


def _middle(numbers: npt.NDArray[np.float64]) -> float:
    return float(np.quantile(numbers, 0.5, method="lower"))  # a mean of two may overflow


def _span(since_s: int, per: int) -> tuple[int, int]:
    return since_s * per, min(UNTIL_S * per, 2**63 - 1)


def _is_inside(number: float, since_s: int, per: int) -> bool:
    least, most = _span(since_s, per)
    return least <= number <= most


def _inside(numbers: npt.NDArray[Any], since_s: int, per: int) -> float:
    """Share of the numbers that are times of a unit, up to 2100."""
    least, most = _span(since_s, per)
    return float(((numbers >= least) & (numbers <= most)).mean())


def _inside_digits(numbers: npt.NDArray[np.float64], digits: str) -> bool:
    """False where too many numbers have not the digits of a date since 2000."""
    rest = len(digits) - (4 if digits.startswith("YYYY") else 2)
    least, most = (2000, 2101) if digits.startswith("YYYY") else (0, 100)
    inside = (numbers >= least * 10.0**rest) & (numbers < most * 10.0**rest)
    return bool(inside.mean() >= 1 - STRAY)


def _date_ms(number: int, digits: str) -> int | None:
    """Epoch milliseconds (UTC) of a date's digits; None: they are no date."""
    text = f"{number:0{len(digits)}d}"
    if number < 0 or len(text) != len(digits):
        return None
    long = digits.startswith("YYYY")
    text, ms = text[:14], int(text[14:] or 0)
    starts = range(4 if long else 2, len(text), 2)
    parts = [int(text[: starts[0]]), *(int(text[at : at + 2]) for at in starts)]
    year, month, day, hour, minute, second = parts + [0] * (6 - len(parts))
    try:
        moment = datetime(year if long else 2000 + year, month, day, hour, minute, second, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return int(moment.timestamp()) * 1000 + ms


def _year_last_ms(number: int, day: int, month: int) -> int | None:
    """As `_date_ms`, of eight digits that end with a year since 2000; `day` and `month` begin there."""
    text = f"{number:08d}"
    turned = text[4:] + text[month : month + 2] + text[day : day + 2]
    ms = _date_ms(int(turned), "YYYYMMDD") if number >= 0 and len(text) == 8 else None
    return ms if ms is not None and _is_inside(ms, SINCE_2000, 1000) else None


def _spread(count: int) -> pa.Array:
    return pa.array(np.arange(0, count, max(1, count // LOOK)))


def _is_time(text: str) -> bool:
    try:
        text_ms(text)
    except ValueError:
        return False
    return True


def are_mostly_times(values: pa.Array | pa.ChunkedArray) -> bool:
    """True where half of the values are times of 2000 to 2100, be it in several units or forms."""
    some = values.take(_spread(len(values)))
    times = 0
    if pa.types.is_string(some.type):
        texts = [text.strip() for text in some.to_pylist() if text]
        times = sum(not text.isdecimal() and _is_time(text) for text in texts)
        some = pa.array([float(text) for text in texts if text.isdecimal()], pa.float64())
    elif not (pa.types.is_integer(some.type) or pa.types.is_floating(some.type)):
        return False
    numbers = np.asarray(some.drop_null().to_numpy(), np.float64)
    if len(numbers):
        times += sum(round(_inside(numbers, SINCE_2000, per) * len(numbers)) for per in PER_S.values())
    return times > MOSTLY * min(LOOK, len(values))


def why_no_time(column: pa.Array | pa.ChunkedArray) -> str:
    """Words with the first value of a column that is no time, and with how many of its texts are none."""
    given = column.drop_null()
    if not len(given):
        return "is empty"
    texts = given.to_pylist() if pa.types.is_string(given.type) else []
    odd = [text for text in texts if text.strip() and not _is_time(text)]
    numbers = [text for text in odd if text.strip().replace(".", "", 1).isdigit()]
    if numbers and len(numbers) == len(odd) < len(texts):
        what = f"{len(numbers):,} numbers, such as {visible(numbers[0], 30)}, among {len(given):,} values"
        return f"has {what}: write ISO 8601 or numbers"
    known = {*numbers}
    strange = [text for text in odd if text not in known] or odd
    first = visible(str(strange[0] if strange else given[0].as_py()), 30)
    if 0 < len(strange) < len(given):
        return f"has {len(strange):,} of {len(given):,} values, such as {first}, that are {NO_TIME}"
    return f"is {first}, which is {NO_TIME}"


def text_ms(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 text, which may end with " UTC". Raises ValueError."""
    return iso_ms(text.strip().removesuffix(" UTC"))


def milliseconds(values: pa.Array | pa.ChunkedArray, form: TimeForm) -> pa.Array | pa.ChunkedArray:
    """Times as int64: as they are if they are numbers, else epoch milliseconds; null where there is none.

    Args:
        values: a column in its form.
        form: of its times.
    """
    values = _of_kind(values, form)
    if form.kind == "timestamp":
        found = _of_timestamps(values)
    elif form.kind == "text":
        known = {text: _text_or_none(text) for text in values.unique().to_pylist()}
        found = pa.array([known[text] for text in values.to_pylist()], pa.int64())
    elif form.kind in DIGITS:
        of = {
            number: None if number is None else _digits_or_none(number, form.kind)
            for number in values.unique().to_pylist()
        }
        found = pa.array([of[number] for number in values.to_pylist()], pa.int64())
    elif form.kind == "seconds":
        found = _rounded(pc.multiply(values.cast(pa.float64(), safe=False), 1000.0))
    else:
        found = _rounded(values)
    inside = pc.and_(pc.greater_equal(found, form.span[0]), pc.less_equal(found, form.span[1]))
    return pc.if_else(pc.fill_null(inside, False), found, pa.scalar(None, pa.int64()))


def _of_kind(values: pa.Array | pa.ChunkedArray, form: TimeForm) -> pa.Array | pa.ChunkedArray:
    """Values of a type that the form can have, null for others: files of a folder may have several types."""
    kind = values.type
    if pa.types.is_float32(kind):
        return with_digits(values)
    if form.kind == "text" or pa.types.is_timestamp(kind) or pa.types.is_integer(kind):
        return values
    if form.kind == "timestamp":
        return values if pa.types.is_date(kind) else pa.nulls(len(values), pa.int64())
    if pa.types.is_string(kind):
        return read(values, Form("float64" if form.kind == "seconds" else "int64"))
    return values if pa.types.is_floating(kind) else pa.nulls(len(values), pa.int64())


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
