"""Facts about a column of a sample, and its use as a feature."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.guess.leaks import tells
from livectr.logs.names import ID_NAME, REQUEST_NAME, names_something
from livectr.logs.times import NAMED, form_of
from livectr.logs.values import (
    STRAY,
    are_dressed,
    are_rounded,
    are_shortened,
    bracketed,
    list_of,
    lost_digits,
    mixed_marks,
    mixed_signs,
    numbers_in,
    with_null,
    without_nan,
)

SAME = 0.9
"""Share of a number's commonest value above which it is not divided by its deviation."""
FEW = 50
"""Different whole numbers up to which a number without an id's name is a kind, not an amount."""
ROW_ID = 0.98
"""Share of different values above which a column names the row and teaches nothing."""
ROW_NUMBER = re.compile(r"^(__index_level_\d+__|unnamed: ?\d+|level_0)$", re.I)
"""Names that dataframes give to the number of a row."""
REQUEST_ROWS = 20
"""Rows of a value up to which a column that is named like a request's id names one."""
SURE = 500
"""Rows from which whole numbers that are all different name the row, and are no amounts."""
SKEWED = 20
"""Largest value by median above which an amount is taken by its logarithm."""
AMOUNT_NAME = re.compile(
    r"(^|_)(age|price|cost|amount|count|num|total|score|rate|rating|duration|length|size|budget|spend|revenue)"
    r"|(^|_|[a-z])([Bb]id|[Pp]aid)s?(_|$)"
)
SEPARATORS = "|;,"
BINS = 10
"""Bins of a number."""

LEFT_OUT = "left out"
EVERY = "every value is"
EMPTY = f"{EVERY} empty"
SHORTENED = "ids such as 1.00001E+15, which have lost digits: write whole numbers or texts"
MOSTLY = 0.5
"""Share of numbers among texts from which the others are doubted."""
OTHER_TIME = "another time; name its age with ops.age, or the log's time with --time"


@dataclass(frozen=True)
class Use:
    """Use of a column.

    Args:
        role: "label", "time", "user", "item", "id", "number", "list", "words" or "left out".
        dtype: type in the log.
        why: reason, for a person.
        log1p: take the logarithm of a number.
        flat: a number that is nearly always the same: divided by its deviation it would be huge elsewhere.
        separator: between the items of a text that is a list.
    """

    role: str
    dtype: str
    why: str
    log1p: bool = False
    flat: bool = False
    separator: str = ""


def use_of(name: str, values: pa.ChunkedArray, clicked: npt.NDArray[np.bool_]) -> Use:
    """Guess the use of a column that has no role of its own.

    Args:
        name: of the column.
        values: n values of the sample, as they were read.
        clicked: bool[n], the label.
    """
    kind = values.type
    values = without_nan(values)
    missing = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_null(kind) or missing.all():
        return _out(EMPTY)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        return _out(OTHER_TIME)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_use(values)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _out(f"holds {kind}, which is no number, text or list")
    if ROW_NUMBER.match(name):
        return _out("the number of a row, as dataframes write it")
    if leak := tells(values, clicked):
        return _out(f"{leak}: it is known only after the click")
    distinct = pc.count_distinct(values, mode="only_valid").as_py()
    present = len(values) - int(missing.sum())
    if distinct == 1 and not missing.any():
        return _out(f"{EVERY} {shortened(values[0].as_py())}")
    if REQUEST_NAME.match(name) and present < REQUEST_ROWS * distinct:
        return _out(f"names a request: {distinct:,} different values in {present:,}")
    if pa.types.is_boolean(kind):
        return Use("id", "bool", "true or false")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if form_of(values) is not None:
            return _out(OTHER_TIME)
        return _text_use(name, values, distinct)
    return _number_use(name, values)


def _number_use(name: str, values: pa.ChunkedArray) -> Use:
    whole = pa.types.is_integer(values.type)
    dtype = "int64" if whole else "float64"
    distinct = pc.count_distinct(values, mode="only_valid").as_py()
    present = len(values) - values.null_count
    if NAMED.search(name) and form_of(values) is not None:
        return _out(OTHER_TIME)
    if not whole:
        if names_something(name) and are_rounded(values):
            return _out(lost_digits(values.type))
        return _amount(values, dtype, "a fraction")
    if ID_NAME.search(name):
        if distinct > ROW_ID * present and present > FEW:
            return _out(f"names the row: {distinct:,} different values in {present:,}")
        return Use("id", dtype, f"named like an id, {distinct:,} different")
    if distinct <= FEW and not AMOUNT_NAME.search(name):
        return Use("id", dtype, f"only {distinct} different numbers")
    if distinct > ROW_ID * present and present > FEW and _rising(values):
        return _out("counts the rows")
    if distinct == present > SURE and not AMOUNT_NAME.search(name):
        return _out(f"names the row: {distinct:,} different values in {present:,}")
    return _amount(values, dtype, f"{distinct:,} different numbers")


def _amount(values: pa.ChunkedArray, dtype: str, what: str) -> Use:
    present = values.drop_null()
    counts = pc.value_counts(present)
    most = pc.max(counts.field("counts")).as_py() / len(present)
    if most > SAME:
        common = counts[int(np.argmax(counts.field("counts").to_numpy()))].as_py()["values"]
        return Use("number", dtype, f"{what}, more than {SAME:.0%} are {common:g}", flat=True)
    skewed = _skew(values)
    return Use("number", dtype, what + (", skewed: by its logarithm" if skewed else ""), log1p=skewed)


def _text_use(name: str, values: pa.ChunkedArray, distinct: int) -> Use:
    texts = [text for text in values.to_pylist() if text is not None]
    if why := bracketed(texts[:1000]):
        return _out(why)
    lists = sum(text.startswith("[") and text.endswith("]") for text in texts)
    if STRAY * len(texts) < lists < (1 - STRAY) * len(texts) and _are_lists(texts):
        return _out("lists in some rows, and none in others: write lists in all")
    if mixed_marks(values):
        return _out("numbers with a decimal comma beside some with a point: write them in one way")
    if mixed_signs(values):
        return _out("numbers with several signs, or with one in some rows alone: write them in one way")
    if names_something(name):
        if are_shortened(values):
            return _out(SHORTENED)
    elif (numbers := numbers_in(values))[0] > MOSTLY * len(texts) and numbers[1] > FEW:
        count, _, other = numbers
        what = f"numbers in {count:,} of {len(texts):,} rows, and texts such as {shortened(other)}"
        return _out(f"{what}: write numbers alone, or name it {name}_code if they are codes")
    dressed = not names_something(name) and are_dressed(values)
    if dressed and distinct > FEW:
        return _out(f"numbers with other marks, such as {shortened(texts[0])}: write 1.37")
    if not dressed and (separator := _separator(texts)):
        return Use(
            "list", "string", f"several values in a text, separated by {separator!r}", separator=separator
        )
    words = sum(text.count(" ") + 1 for text in texts) / len(texts)
    if words >= 3 and distinct > FEW:
        return Use("words", "string", f"texts of {words:.0f} words: one key a word", separator=" ")
    if distinct > ROW_ID * len(texts) and len(texts) > FEW:
        such = f", such as {shortened(texts[0])}" if re.search(r"\d[.,]\d", texts[0]) else ""
        return _out(f"names the row: {distinct:,} different values in {len(texts):,}{such}")
    return Use("id", "string", f"{distinct:,} different texts")


def _list_use(values: pa.ChunkedArray) -> Use:
    item = values.type.value_type
    if not pc.sum(pc.list_value_length(values)).as_py():
        return _out("every list is empty")
    if (holed := int(np.count_nonzero(with_null(values)))) > STRAY * len(values):
        return _out(f"a null is inside of {holed:,} of {len(values):,} lists: write lists without it")
    if pa.types.is_string(item) or pa.types.is_large_string(item):
        return Use("list", "list<string>", "lists of texts")
    if pa.types.is_integer(item):
        return Use("list", "list<int64>", "lists of whole numbers")
    return _out(f"lists of {item}: only lists of ids and texts can be keys")


def _are_lists(texts: list[str]) -> bool:
    """True if texts in brackets are lists, and no words."""
    kinds = ("list<int64>", "list<string>")
    return any(list_of(text, kind) for text in texts if text.startswith("[") for kind in kinds)


def _separator(texts: list[str]) -> str:
    """Separator of texts that are lists: many texts have it, and the items repeat."""
    for mark in SEPARATORS:
        having = [text for text in texts if mark in text]
        if len(having) < 0.2 * len(texts):
            continue
        items = [item for text in having for item in text.split(mark)]
        if len(set(items)) < 0.5 * len(items) and (mark != "," or ", " not in having[0]):
            return mark
    return ""


def _skew(values: pa.ChunkedArray) -> bool:
    least, most = (pc.min_max(values)[end].as_py() for end in ("min", "max"))
    median = pc.quantile(values, 0.5)[0].as_py()
    return bool(least is not None and least >= 0 and most > SKEWED * max(median, 1))


def _rising(values: pa.ChunkedArray) -> bool:
    numbers = values.drop_null().to_numpy()
    return bool((np.diff(numbers) > 0).all())


def _out(why: str) -> Use:
    return Use(LEFT_OUT, "", why)


def shortened(value: Any) -> str:
    """Value for a person, at most 30 characters."""
    text = str(value)
    return text if len(text) <= 30 else text[:29] + "…"


def rounded(value: float) -> float:
    """Number of four digits, as a person would write it; the greatest ones stay as they are."""
    few = float(f"{value:.4g}")
    return few if math.isfinite(few) else value


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for a message; of many, the first."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
