"""Columns of a log that are made of others: a label by a rule, and a time of a date and a time of day."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from livectr.logs.times import NAMED
from livectr.logs.values import STRAY, Form, valued
from livectr.system.errors import ConfigError

Columns: TypeAlias = pa.Table | pa.RecordBatch

RULE = re.compile(r"(?P<column>.+?)(?P<sign>>=|=)(?P<value>.+)")
OF_DAY = r"^\s*([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?\s*$"
DATE = r"^\s*\d{4}-?(0[1-9]|1[0-2])-?([0-2]\d|3[01])\s*$"
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
    if sign == ">=":
        try:
            least = float(value)
        except ValueError:
            raise ConfigError(f"--label: {value!r} of {said!r} is no number; write COLUMN>=NUMBER.") from None

    def of(rows: Columns) -> pa.Array | pa.ChunkedArray:
        values = valued(rows.column(column), forms[column])
        if sign == "=":
            return pc.equal(values.cast(pa.string()), value).cast(pa.int32())
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise ConfigError(f"--label: column {column!r} holds {values.type}, no numbers to compare.")
        return pc.greater_equal(values, least).cast(pa.int32())

    words = f"1 where {column} is {'at least ' if sign == '>=' else ''}{value}"
    return Made(free(LABEL, names), (column,), words, of)


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
    days = [name for name in names if _all(table.column(name), OF_DAY, ())]
    named = [name for name in dates if NAMED.search(name)] or dates
    if not named or not days or (said in names and said not in (*dates, *days)):
        return None
    date = next((name for name in named if name == said), named[0])
    day = next((name for name in days if name == said), days[0])

    def of(rows: Columns) -> pa.Array | pa.ChunkedArray:
        texts = pc.utf8_trim_whitespace(rows.column(date).cast(pa.string()))
        digits = pc.replace_substring_regex(texts, r"^(\d{4})-?(\d\d)-?(\d\d)$", r"\1-\2-\3")
        moment = pc.utf8_trim_whitespace(rows.column(day))
        padded = pc.replace_substring_regex(moment, r"^(\d):", r"0\1:")
        return pc.binary_join_element_wise(digits, padded, "T")

    return Made(free(DATE_TIME, table.column_names), (date, day), f"made of {date} and {day}", of)


DATE_TYPES = (pa.date32(), pa.date64())


def _all(column: pa.ChunkedArray, pattern: str, kinds: Sequence[pa.DataType]) -> bool:
    """True where nearly all values are of a pattern, or the column of a type."""
    if column.type in kinds:
        return True
    if not (pa.types.is_string(column.type) or (kinds and pa.types.is_integer(column.type))):
        return False
    texts = column.drop_null().cast(pa.string())
    fits = pc.sum(pc.match_substring_regex(texts, pattern)).as_py() or 0
    return len(texts) > 0 and fits >= (1 - STRAY) * len(texts)
