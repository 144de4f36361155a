"""Columns of a log that are made of others: a label by a rule, and a time of a date and a time of day."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from livectr.logs.times import BEST, NAMED, form_of
from livectr.logs.values import STRAY, Form, valued, without_nan
from livectr.system.errors import ConfigError

Columns: TypeAlias = pa.Table | pa.RecordBatch

RULE = re.compile(r"(?P<column>.+?)(?P<sign>>=|<=|!=|>|<|=)(?P<value>.+)")
COMPARED = {
    ">=": ("at least ", pc.greater_equal),
    "<=": ("at most ", pc.less_equal),
    ">": ("above ", pc.greater),
    "<": ("below ", pc.less),
    "=": ("", pc.equal),
    "!=": ("not ", pc.not_equal),
}
"""Sign of a rule → how it is said, and how it is decided."""
TIME_NAME = re.compile(r"(^|_)(time|tod|hhmm(ss)?)(_|$)", re.I)
HOUR_NAME = re.compile(r"^(hour|hr|hh)(_of_day)?$", re.I)
HALVES = r"^\s*(?P<hour>0?[1-9]|1[0-2])(?P<rest>(?::[0-5]\d){1,2})\s*(?P<half>[AaPp])\.?[Mm]\.?\s*$"
OF_DAY = r"^\s*([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?\s*$"
DATE = r"^\s*\d{4}-?(0[1-9]|1[0-2])-?([0-2]\d|3[01])\s*$"
HOUR = r"^\s*([01]\d|2[0-3])\s*$"
HHMM = r"^\s*([01]\d|2[0-3])[0-5]\d\s*$"
HHMMSS = r"^\s*([01]\d|2[0-3])[0-5]\d[0-5]\d\s*$"
LABEL, DATE_TIME = "label", "date_time"


@dataclass(frozen=True)
class Made:
    """A column that is made of others.

    Args:
        name: of the column.
        columns: of which it is made.
        why: how, for a person.
        of: gives the values for n rows as they were read.
    """

    name: str
    columns: tuple[str, ...]
    why: str
    of: Callable[[Columns], pa.Array | pa.ChunkedArray]


def free(name: str, taken: Sequence[str]) -> str:
    """Name that no column has: the name, or one with more underscores."""
    while name in taken:
        name += "_"
    return name


def label_rule(said: str, names: Sequence[str], forms: Mapping[str, Form]) -> Made | None:
    """Label that is said as a rule, such as rating>=4 or event=click; None: it is a column.

    Args:
        said: value of --label.
        names: of the columns.
        forms: column → its form.

    Raises:
        ConfigError: the rule compares with no number.
    """
    found = None if said in names else RULE.fullmatch(said)
    if found is None or (column := found["column"].strip()) not in names:
        return None
    sign, value = found["sign"], found["value"].strip()
    how, compare = COMPARED[sign]
    number = _number(value)
    if number is None and sign[0] in "<>":
        raise ConfigError(f"--label: {value!r} of {said!r} is no number; write COLUMN{sign}NUMBER.")

    def of(rows: Columns) -> pa.Array | pa.ChunkedArray:
        values = without_nan(valued(rows.column(column), forms[column]))
        if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
            raise ConfigError(
                f"--label: column {column!r} holds {values.type}; name one of texts or numbers."
            )
        numbers = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        if sign[0] in "<>" and not numbers:
            raise ConfigError(
                f"--label: column {column!r} holds {values.type}, no numbers to compare; write numbers, or "
                f"compare texts: --label '{column}=VALUE'."
            )
        if numbers and number is not None:
            return compare(values, number).cast(pa.int32())
        text = value.lower() if pa.types.is_boolean(values.type) else value
        return compare(pc.utf8_trim_whitespace(values.cast(pa.string())), text).cast(pa.int32())

    return Made(free(LABEL, names), (column,), f"1 where {column} is {how}{value}", of)


def _number(text: str) -> int | float | None:
    """Number of a text, whole if it is; None: it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    try:
        return int(text)
    except ValueError:
        return number


def date_time(table: pa.Table, said: str | None, taken: Sequence[str]) -> Made | None:
    """Time of a log that has a column of dates and one of times of day; None: it has not.

    Args:
        table: sample, in its forms.
        said: value of --time: a column, "DATE,TIME", or None to guess.
        taken: columns that have a use.
    """
    names = [name for name in table.column_names if name not in taken]
    if said is not None and "," in said and said not in names:
        names = [name for name in said.split(",") if name in names]
    elif said is not None and said not in names:
        return None
    dates = [name for name in names if _all(table.column(name), DATE, DATE_TYPES)]
    named = [name for name in dates if NAMED.search(name)] or dates
    if not named:
        return None
    clocks = {
        name: clock for name in names if name not in dates and (clock := _clock(name, table)) is not None
    }
    others = [name for name in names if name not in (*dates, *clocks)]
    own = [name for name in others if name.lower() in BEST and not table.column(name).null_count]
    if said is None and _has_time(table, own):
        return None
    if said is None and _has_time(table, others):
        clocks = {name: clock for name, clock in clocks.items() if not HOUR_NAME.match(name)}
    if not clocks or (said in names and said not in (*dates, *clocks)):
        return None
    date = next((name for name in named if name == said), named[0])
    day = next((name for name in clocks if name == said), next(iter(clocks)))

    def of(rows: Columns) -> pa.Array | pa.ChunkedArray:
        texts = pc.utf8_trim_whitespace(rows.column(date).cast(pa.string()))
        digits = pc.replace_substring_regex(texts, r"^(\d{4})-?(\d\d)-?(\d\d)$", r"\1-\2-\3")
        moment = clocks[day](pc.utf8_trim_whitespace(rows.column(day).cast(pa.string())))
        return pc.binary_join_element_wise(digits, moment, "T")

    return Made(free(DATE_TIME, table.column_names), (date, day), f"made of {date} and {day}", of)


Clock: TypeAlias = Callable[[pa.Array | pa.ChunkedArray], pa.Array | pa.ChunkedArray]


def _clock(name: str, table: pa.Table) -> Clock | None:
    """Function that writes the times of day of a column, as texts, as HH:MM[:SS]; None: it has none."""
    column = table.column(name)
    if _all(column, OF_DAY, ()):
        return lambda texts: pc.replace_substring_regex(texts, r"^(\d):", r"0\1:")
    if _all(column, HALVES, ()):
        return _of_halves
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        return None
    if HOUR_NAME.match(name) and _all(column, HOUR, (), padded=2):
        return lambda texts: pc.binary_join_element_wise(pc.utf8_lpad(texts, 2, "0"), "00", ":")
    for width, pattern in ((6, HHMMSS), (4, HHMM)) if TIME_NAME.search(name) else ():
        longest = pc.max(pc.utf8_length(column.cast(pa.string()))).as_py()
        if longest in (width, width - 1) and _all(column, pattern, (), padded=width):
            return partial(_of_digits, width=width)
    return None


def _of_digits(texts: pa.Array | pa.ChunkedArray, width: int) -> pa.Array | pa.ChunkedArray:
    """Times of day that are written as HHMM or HHMMSS, with or without zeros before them."""
    digits = pc.utf8_lpad(texts, width, "0")
    starts = range(0, width, 2)
    return pc.binary_join_element_wise(*(pc.utf8_slice_codeunits(digits, at, at + 2) for at in starts), ":")


def _of_halves(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Times of day of 24 hours, for times before and after noon."""
    parts = pc.extract_regex(texts, HALVES)
    hour = pc.struct_field(parts, "hour").cast(pa.int64())
    noon = pc.equal(hour, 12)
    after = pc.is_in(pc.struct_field(parts, "half"), pa.array(["P", "p"]))
    whole = pc.add(pc.if_else(noon, 0, hour), pc.if_else(after, 12, 0))
    return pc.binary_join_element_wise(
        pc.utf8_lpad(whole.cast(pa.string()), 2, "0"), pc.struct_field(parts, "rest"), ""
    )


def _has_time(table: pa.Table, names: Sequence[str]) -> bool:
    """True if a column is a time as it is, so that an hour beside a date says less."""
    return any(NAMED.search(name) and form_of(table.column(name)) is not None for name in names)


DATE_TYPES = (pa.date32(), pa.date64())


def _all(column: pa.ChunkedArray, pattern: str, kinds: Sequence[pa.DataType], padded: int = 0) -> bool:
    """True where nearly all values are of a pattern, or the column of a type.

    Args:
        column: n values.
        pattern: of texts.
        kinds: types that fit as they are; whole numbers are texts then.
        padded: digits of whole numbers, which are padded with zeros; 0: as they are.
    """
    if column.type in kinds:
        return True
    if not (pa.types.is_string(column.type) or ((kinds or padded) and pa.types.is_integer(column.type))):
        return False
    texts = pc.utf8_lpad(column.drop_null().cast(pa.string()), padded, "0")
    fits = pc.sum(pc.match_substring_regex(texts, pattern)).as_py() or 0
    return len(texts) > 0 and fits >= (1 - STRAY) * len(texts)
