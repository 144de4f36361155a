"""Meaning of the texts of a column: whole numbers, numbers, lists or texts, and how they are written.

One rule for every reader. A whole number never becomes a double: beyond int64 a column is a text, and so is
one with leading zeros. `17.0` in a column of ids is 17, as dataframes write them beside empty cells. "[1, 2]"
and "['a', 'b']" are lists.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from livectr.ingest.language.dtypes import arrow_type
from livectr.system.texts import visible
from livectr.system.values import MOST_EXACT, UnfitError, meaning

LISTS_LOOKED_AT = 2_000
"""Lists of which the items' type is told."""
MOST_EXACT_FLOAT = 2**24
"""Largest whole number up to which every whole number is a float32, too."""
EXACT_DIGITS = 15
"""Digits of a decimal that a double holds."""
STRAY = 0.01
"""Share of values of another form up to which a column keeps its form; their rows are set aside."""
ABSENT = (
    *("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "NaN", "nan", "-nan", "NaT", "\\N"),
)
"""Texts that mean that there is no value, in a label, too."""
_NO_VALUE = (
    *("na", "n/a", "n.a.", "null", "(null)", "none", "(none)", "nil", "nan", "nat", "missing", "unknown"),
    *("undefined", "not available", "not set", "(not set)", "(blank)", "no data"),
)
NOTHING = (
    *ABSENT,
    *(form for text in _NO_VALUE for form in (text, text.upper(), text.capitalize(), text.title())),
    *("-", "--", "---", "\u2013", "\u2014", "?", "??", ".", "..", "...", "\u2026"),
    *(both for sign in "$€£¥₹" for n in range(4) for both in (f"{sign}{' ' * n}-", f"-{' ' * n}{sign}")),
    *("#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!", "#N/A N/A"),
)
"""Texts that mean that there is no value among numbers and lists."""
EMPTY_TEXTS = ("", "NULL", "null", "\\N")
"""Texts that mean that there is no value where all others are texts: NA is a country, None a name."""
WHOLE = r"^\s*[+-]?(0|[1-9]\d*)(\.0*)?\s*$"
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
EXPONENT = r"^\s*[+-]?[\d.,]+[eE]"
SHORTENED = r"^\s*\d([.,]\d+)?E\+\d{2,}\s*$"
"""A long whole number as a spreadsheet shows it: it has lost digits."""
INFINITE = r"^\s*[+-]?(?i:inf|infinity)\s*$"
MARKS = " \u00a0\u2009\u202f'\u2019_"
"""Marks between groups of three digits, apart from point and comma."""
COMMA = rf"^\s*[+-]?(\d+|[1-9]\d{{0,2}}([.{MARKS}]\d{{3}})+),\d+([eE][+-]?\d+)?\s*$"
WITHOUT_COMMA = rf"^\s*[+-]?(\d+|[1-9]\d{{0,2}}([.{MARKS}]\d{{3}})+)\s*$"
GROUPED = r"^\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*$"
MARKED = rf"^\s*[+-]?[1-9]\d{{0,2}}([{MARKS}]\d{{3}})+(\.\d+)?\s*$"
POINTED = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+$"
"""Digits in groups of three by points, or a fraction of three digits: 1.234."""
INDIAN = r"^\s*[+-]?[1-9]\d?(,\d{2})*,\d{3}(\.\d+)?\s*$"
SURELY_GROUPED = r"^\s*[+-]?\d{1,2},|,0|\."
"""In a text that is `GROUPED`: 123,456 may be two ids, but an id has no leading zero, and a number's first
group is shorter at times."""
_CURRENCIES = (
    *(
        "AED",
        "ARS",
        "AUD",
        "BRL",
        "CAD",
        "CHF",
        "CLP",
        "CNY",
        "COP",
        "CZK",
        "DKK",
        "EGP",
        "EUR",
        "GBP",
        "HKD",
    ),
    *(
        "HUF",
        "IDR",
        "ILS",
        "INR",
        "JPY",
        "KRW",
        "MXN",
        "MYR",
        "NGN",
        "NOK",
        "NZD",
        "PEN",
        "PHP",
        "PLN",
        "RON",
    ),
    *("RUB", "SAR", "SEK", "SGD", "THB", "TRY", "TWD", "UAH", "USD", "VND", "ZAR"),
    *("Fr", "Ft", "Kč", "Rp", "Rs", "kr", "lei", "zł", "руб"),
)
SIGN = rf"(?:[A-Z]{{0,3}}\p{{Sc}}|%|{'|'.join(_CURRENCIES)})"
"""A sign of money or percent: $, R$, EUR."""
SIGNED = rf"^([+-]?{SIGN}[{MARKS}]*[+-]?\d[\d.,{MARKS}]*|[+-]?\d[\d.,{MARKS}]*{SIGN})$"
ZERO = r"^0([.,]0+)?$"
LIST_OF_NUMBERS = r"^\d+(\s*[,;|]\s*\d+){2,}$"
DRESSED = rf"^[^\d,;|]*\d+([.{MARKS}]\d{{3}})*,\d{{1,2}}[^\d,;|]*$"
LEADING_ZERO = r"^\s*[+-]?0\d"
PLUS = r"^\s*\+"
TWO_TEXTS = re.compile(r"""['"]\s+['"]""")
UNDIVIDED = re.compile(r"""^\[(\s*-?\d[\d.eE+-]*){2,}\s*\]$|^\[\s*(['"]).*\2\s+\2""", re.S)
"""A list as NumPy writes it: [1 2]."""
OBJECT = re.compile(r"""^\s*\{\s*['"]?\w+['"]?\s*[:=]""")
LIST = r"^\s*\[.*\]\s*$"
KINDS = {
    **{"int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(), "string": pa.string()},
    **{"list<int64>": pa.list_(pa.int64()), "list<string>": pa.list_(pa.string())},
}

_BOOLS: dict[object, bool] = {"true": True, "false": False, "1": True, "0": False}
"""Texts of bools, where JSON has them among other values."""

Texts: TypeAlias = pa.Array | pa.ChunkedArray


@dataclass(frozen=True)
class Form:
    """Form of a column's texts.

    Args:
        kind: "int32", "int64", "float64", "string", "list<int64>" or "list<string>"; "": as it was read.
        comma: numbers have a decimal comma: 11,50, 1.234,50 and 1 234,50.
        grouped: marks group the digits: 1,234.50 and 1'234.50; with `comma` points do: 1.234.
        sign: each number has a sign of money or percent before or behind it: "$", "EUR", "%".
        rounded: numbers as a spreadsheet shortens them: 1.764E+12.
    """

    kind: str = "string"
    comma: bool = False
    grouped: bool = False
    sign: str = ""
    rounded: bool = False

    @property
    def words(self) -> str:
        """For a person, what is unusual; "" for nothing."""
        how = "digits in groups of three" if self.grouped else "with a decimal comma" if self.comma else ""
        short = "rounded, such as 1.764E+12" if self.rounded else ""
        return ", ".join(filter(None, (how, f"without the {self.sign}" if self.sign else "", short)))


def form_of(values: Texts, *, is_id: bool = False) -> Form:
    """Form of a column, from a sample of its texts.

    Args:
        values: texts; those of `NOTHING` and nulls do not count.
        is_id: as of `form_of_column`.
    """
    given = pc.utf8_trim_whitespace(given_of(values))
    if len(given) and _share(given, LIST) >= 1 - STRAY:
        return Form(_list_kind(given))
    if not len(given) or _share(given, LEADING_ZERO) > 0:
        return Form()
    if is_id and _share(given, PLUS) + _share(given, EXPONENT) > 0:
        return Form()
    if not is_id and (sign := _sign(given)):
        form = form_of(_without(given, sign))
        return replace(form, kind="float64", sign=sign) if form.kind in ("int64", "float64") else Form()
    if not is_id and _are_pointed(given):
        return Form("float64", comma=True, grouped=True)
    plain = _share(given, NUMBER)
    if plain >= 1 - STRAY:
        whole = _share(given, WHOLE)
        if whole < (1 - STRAY if is_id else plain):
            text = is_id and (_most_digits(given) > EXACT_DIGITS or _are_versions(given))
            return Form() if text else Form("float64", rounded=not is_id and are_shortened(given))
        if not is_id and _share(given, r"\.") > 0 and not _beyond(given, MOST_EXACT):
            return Form("float64")
        return Form("int64") if not _beyond(given, 1 << 63) else Form()
    if plain > 0 and plain + _share(given, INFINITE) >= 1 - STRAY:
        return Form("float64")
    return _marked_form(given, plain, is_id=is_id)


def _are_pointed(given: Texts) -> bool:
    """True for whole numbers with points in them: 1.234.567, or 1.200 beside 999, which no fraction is."""
    groups = given.filter(pc.match_substring_regex(given, POINTED))
    short = _share(given, r"^[+-]?\d{1,3}$")
    if len(groups) < max(1, (1 - STRAY - short) * len(given)):
        return False
    return _share(groups, r"\..*\.") > 0 or (short > 0 and _share(groups, "0$") > 0)


def _most_digits(given: Texts) -> int:
    """Digits of the longest number."""
    return int(pc.max(pc.utf8_length(pc.replace_substring_regex(given, r"^[^1-9]+|\D", ""))).as_py())


def _are_versions(given: Texts) -> bool:
    """True for 1.10 beside 1.9: as numbers, 1.10 and 1.1 would be the same."""
    decimals = pc.utf8_length(pc.replace_substring_regex(given, r"^[^.]*\.?", ""))
    return _share(given, r"\.\d*[1-9]0+$") > 0 and bool(pc.count_distinct(decimals).as_py() > 1)


def _sign(given: Texts) -> str:
    """The sign of money or percent that nearly all numbers but zeros have; "": they have none, or several."""
    signed = given.filter(pc.match_substring_regex(given, SIGNED))
    if len(signed) + _share(given, ZERO) * len(given) < (1 - STRAY) * len(given):
        return ""
    found = pc.replace_substring_regex(signed, rf"[\d.,+\-{MARKS}]", "").unique().to_pylist()
    return str(found[0]) if len(found) == 1 else ""


def _without(texts: Texts, sign: str) -> Texts:
    around = rf"[{MARKS}]*{re.escape(sign)}[{MARKS}]*"
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, around, ""))


def _marked_form(given: Texts, plain: float, *, is_id: bool) -> Form:
    """Form of numbers with a decimal comma or groups of digits; a text otherwise.

    Args:
        given: texts that are values.
        plain: share of them that are numbers as they are.
        is_id: 12,5 are two ids, and 17,0 is 17.
    """
    comma = _share(given, COMMA)
    if comma + _share(given, WITHOUT_COMMA) >= 1 - STRAY and comma > 0:
        if is_id:
            return Form("int64", comma=True) if _share(given, r",0+\s*$") == comma else Form()
        # 11,500 is eleven thousand where nothing says that it is eleven and a half.
        said = _share(given, rf"^\s*[+-]?0,|[.{MARKS}]\d{{3}},|,(\d{{1,2}}|\d{{4,}})\s*$|[eE]")
        if said > 0:
            return Form("float64", comma=True, rounded=are_shortened(given))
    if is_id:
        return Form()
    sure = given.filter(pc.match_substring_regex(given, GROUPED))
    if _share(given, GROUPED) + plain >= 1 - STRAY and len(sure) and _share(sure, SURELY_GROUPED) > 0:
        return Form("float64", grouped=True)
    if _share(given, INDIAN) + plain >= 1 - STRAY and _share(given, r",\d{2},") > 0:
        return Form("float64", grouped=True)
    if _share(given, MARKED) + plain >= 1 - STRAY:
        return Form("float64", grouped=True)
    return Form()


def mixed_marks(values: Texts) -> bool:
    """True for numbers of which some have a decimal comma and some a decimal point: 1,5 and 2.5."""
    given = given_of(values)
    comma, point = r"^\s*[+-]?\d+,\d+\s*$", r"^\s*[+-]?\d+\.\d+\s*$"
    if not len(given) or _share(given, comma) + _share(given, NUMBER) < 1 - STRAY:
        return False
    return min(_share(given, comma), _share(given, point)) > STRAY


def mixed_signs(values: Texts) -> bool:
    """True for numbers of which some have a sign of money or percent and some none, or another one."""
    given = pc.utf8_trim_whitespace(given_of(values))
    if not len(given) or (signed := _share(given, SIGNED)) <= STRAY or _sign(given):
        return False
    return signed + _share(given, rf"{NUMBER}|{COMMA}|{GROUPED}|{MARKED}") >= 1 - STRAY


def form_of_column(column: Texts, *, is_id: bool) -> Form:
    """Form of a column as it was read.

    Args:
        column: texts, or values of a plain type.
        is_id: it names something, so doubles without a fraction are whole numbers: a dataframe makes them
            of ids beside an empty cell.
    """
    if pa.types.is_string(column.type):
        return form_of(column, is_id=is_id)
    if is_id and pa.types.is_floating(column.type) and _are_whole(column):
        return Form("int64")
    return Form("")


def _are_whole(column: Texts) -> bool:
    numbers = _finite(column)
    return bool(len(numbers)) and bool((np.floor(numbers) == numbers).all()) and not are_rounded(column)


def are_rounded(column: Texts) -> bool:
    """True for floats that are whole numbers, some so large that the type has not all of their digits."""
    numbers = _finite(column)
    return bool((np.floor(numbers) == numbers).all() and (np.abs(numbers) >= most_exact(column.type)).any())


def most_exact(kind: pa.DataType) -> int:
    """Largest whole number up to which a type of floats has every whole number."""
    return MOST_EXACT_FLOAT if pa.types.is_float32(kind) else MOST_EXACT


def lost_digits(kind: pa.DataType) -> str:
    """Words on ids of a type of floats that are `are_rounded`, with what to do."""
    beyond = "beyond 2^24 as 32-bit floats" if pa.types.is_float32(kind) else "beyond 2^53 as floats"
    return f"ids {beyond}, which have lost digits: write whole numbers or texts"


def widened(column: Texts) -> Texts:
    """The values, with doubles for floats."""
    return column.cast(pa.float64()) if pa.types.is_float32(column.type) else column


def are_shortened(column: Texts) -> bool:
    """True for texts of which many are whole numbers as a spreadsheet shortens them: 1.00001E+15."""
    if not pa.types.is_string(column.type) or not len(given := given_of(column)):
        return False
    short = given.filter(pc.match_substring_regex(given, SHORTENED)).to_pylist()
    return sum(map(_lacks_digits, short)) > STRAY * len(given)


def _lacks_digits(text: str) -> bool:
    """True where the exponent of a text of SHORTENED asks for more digits than it has."""
    number, exponent = text.strip().split("E+")
    return len(number) - 2 < int(exponent)


def numbers_in(column: Texts) -> tuple[int, int, str]:
    """Numbers in a column of texts, how many of these are different, and the first text that is none.

    Texts of NOTHING do not count. There are no numbers where some are codes with leading zeros or lists, nor
    where nearly all texts are numbers: they are too large for one.
    """
    given = pc.utf8_trim_whitespace(given_of(column))
    if not len(given) or _share(given, LEADING_ZERO) + _share(given, LIST_OF_NUMBERS) > 0:
        return 0, 0, ""
    are = pc.match_substring_regex(given, rf"{NUMBER}|{COMMA}|{GROUPED}|{MARKED}|{SIGNED}")
    numbers, others = given.filter(are), given.filter(pc.invert(are))
    if len(others) <= STRAY * len(given):
        return 0, 0, ""
    return len(numbers), pc.count_distinct(numbers).as_py(), others[0].as_py()


def are_dressed(column: Texts) -> bool:
    """True for texts that each are a single number with a decimal comma and other marks: (1,5)."""
    given = given_of(column)
    return bool(len(given)) and _share(given, DRESSED) >= 1 - STRAY


def without_nan(column: Texts) -> Texts:
    """The values, with null for NaN: in a log both mean that there is none."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)


def _finite(column: Texts) -> npt.NDArray[np.float64]:
    numbers = np.asarray(column.drop_null().to_numpy(), np.float64)
    return numbers[~np.isnan(numbers)]


def given_of(values: Texts) -> Texts:
    """Texts that are values."""
    return values.filter(pc.invert(missing(values)))


def read(values: Texts, form: Form) -> pa.Array | pa.ChunkedArray:
    """Values of texts; null for one that means nothing, and for one that has another form.

    Texts of a "string" stay as they are, but for those of EMPTY_TEXTS. A number that
    no double holds is infinite.
    """
    if form.kind == "string":
        return pc.if_else(pc.is_in(values, pa.array(EMPTY_TEXTS)), pa.scalar(None, pa.string()), values)
    given = pc.if_else(missing(values), pa.scalar(None, pa.string()), values)
    if form.kind.startswith("list"):
        known = {text: list_of(text, form.kind) for text in given.unique().to_pylist()}
        return pa.array([known[text] for text in given.to_pylist()], KINDS[form.kind])
    text = _without(given, form.sign) if form.sign else pc.utf8_trim_whitespace(given)
    if form.comma:
        pattern = rf"{COMMA}|{WITHOUT_COMMA}"
    elif form.grouped:
        pattern = rf"{NUMBER}|{GROUPED}|{MARKED}|{INDIAN}"
    else:
        pattern = WHOLE if form.kind != "float64" else rf"{NUMBER}|{INFINITE}"
    fits = pc.fill_null(pc.match_substring_regex(text, pattern), False)
    text = pc.if_else(fits, text, pa.scalar(None, pa.string()))
    if form.comma:
        text = pc.replace_substring(pc.replace_substring_regex(text, rf"[.{MARKS}]", ""), ",", ".")
    elif form.grouped:
        text = pc.replace_substring_regex(text, rf"[,{MARKS}]", "")
    text = pc.replace_substring_regex(text, r"^\+", "")
    if form.kind != "float64":
        return _as_integers(pc.replace_substring_regex(text, r"\.0*$", ""), KINDS[form.kind])
    return text.cast(pa.float64())


def list_of(text: str | None, kind: str) -> list[Any] | None:
    """Items of a list that is written as JSON or as Python writes it; None: they are of another kind.

    Args:
        text: "[1, 2]", '["a", "b"]' or "['a', 'b']".
        kind: "list<int64>" or "list<string>".
    """
    if text is None:
        return None
    found = _parsed(text)
    if not isinstance(found, list):
        return None
    if kind == "list<int64>":
        fits = all(type(one) is int and -(1 << 63) <= one < 1 << 63 for one in found)
    else:
        fits = all(isinstance(one, str) and _is_utf8(one) for one in found)
    return found if fits else None


def _parsed(text: str) -> Any:
    """Value of a text of JSON or Python; None: it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        return None
    if TWO_TEXTS.search(text) and _joins_texts(text):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _joins_texts(text: str) -> bool:
    """True for ['a' 'b'], as NumPy writes a list of two: Python reads the text "ab"."""
    last = None
    try:
        for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
            if token.type == last == tokenize.STRING:
                return True
            last = last if token.type == tokenize.NL else token.type
    except (tokenize.TokenError, SyntaxError):
        pass
    return False


def bracketed(texts: list[str]) -> str:
    """Words on texts in brackets or braces that no column can be; "" for others.

    Args:
        texts: of a column that is no list.
    """
    if not all(text.lstrip()[:1] in ("{", "[") for text in texts):
        return ""
    found = [_json_or_none(text) for text in texts]
    if sum(one is not None for one in found) >= (1 - STRAY) * len(texts):
        if _has_objects(found):
            return "holds JSON: name what you need with json_fields, or ops.json_field"
        if any(item is None for one in found if isinstance(one, list) for item in one):
            return "a null is inside of lists: write lists without it"
        return "lists of other values than ids or texts, which alone can be keys"
    such = visible(texts[0], 30)
    if _has_objects([_parsed(text) for text in texts]) or any(OBJECT.match(text) for text in texts):
        return f"objects that are no JSON, such as {such}: write JSON"
    if any("," in text for text in texts) or any(UNDIVIDED.match(text) for text in texts):
        return f"lists that are not written as [1, 2], such as {such}"
    return ""


def _has_objects(found: list[Any]) -> bool:
    """True where some values are objects that hold something, or lists of objects."""
    inside = (item for one in found if isinstance(one, list) for item in one)
    return any(isinstance(one, dict) and one for one in (*found, *inside))


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_utf8(text: str) -> bool:
    """False for half of a surrogate pair, which JSON can escape and no UTF-8 has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _list_kind(given: Texts) -> str:
    """Kind of texts that look like lists: "string" where their items are neither whole numbers nor texts."""
    some = given.slice(0, LISTS_LOOKED_AT).to_pylist()
    for kind in ("list<int64>", "list<string>"):
        fits = [list_of(text, kind) for text in some]
        if sum(one is not None for one in fits) >= (1 - STRAY) * len(some) and any(fits):
            return kind
    return "string"


def valued(column: Texts, form: Form) -> pa.Array | pa.ChunkedArray:
    """Values of a column as it was read, in its form; null where a value has no place in it.

    Args:
        column: texts, or values of a plain type.
        form: of the column.
    """
    if not form.kind or column.type == KINDS[form.kind] != pa.string():
        return column
    return read(column, form) if pa.types.is_string(column.type) else in_type(column, form.kind)


def in_type(column: Texts, dtype: str) -> pa.Array | pa.ChunkedArray:
    """Values of a plain type in a column of another one; null where a value has no place in it.

    Args:
        column: n values of a type that `livectr.logs.arrow_rows.plain` gives.
        dtype: type of the column. Texts are read as those of a file, "007" as no number, and values
            become the texts that JSON has for them, but for bytes; the others mean what
            `livectr.system.values` says.
    """
    kind = arrow_type(dtype)
    if column.type == kind:
        return column
    if pa.types.is_string(column.type) and dtype in KINDS:
        return read(column, Form(dtype))
    if _widens(column.type, kind):
        return column.cast(kind)
    if pa.types.is_float32(column.type):
        column = with_digits(column) if pa.types.is_integer(kind) else widened(column)
    values = column.to_pylist()
    if dtype == "string":
        texts = (None if one is None or isinstance(one, bytes) else _text(one) for one in values)
        return pa.array(texts, kind)
    return pa.array([_meaning_or_none(one, dtype) for one in values], kind)


def _text(value: object) -> str:
    """Text that JSON has for a value, or ISO 8601 of a time."""
    if isinstance(value, date):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """True for whole numbers, or lists of them, that all have a place in a wider type."""
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        given, wanted = given.value_type, wanted.value_type
    whole = pa.types.is_integer(given) and pa.types.is_integer(wanted)
    floats = (given, wanted) == (pa.float32(), pa.float64())
    return (whole and bool(given.bit_width <= wanted.bit_width)) or floats or pa.types.is_null(given)


def with_digits(column: Texts) -> Texts:
    """Floats that have all digits of a whole number; null for others."""
    inside = pc.fill_null(pc.less(pc.abs(column), float(most_exact(column.type))), False)
    return pc.if_else(inside, column, pa.scalar(None, column.type))


def _meaning_or_none(value: object, dtype: str) -> object:
    try:
        return meaning(
            _BOOLS.get(value, value) if dtype == "bool" and isinstance(value, str) else value, dtype
        )
    except UnfitError:
        return None


def are_lists(texts: Texts) -> npt.NDArray[np.bool_]:
    """bool[n], texts that are lists of whole numbers or texts; all False for a column of another type."""
    found = np.zeros(len(texts), np.bool_)
    if pa.types.is_string(texts.type):
        around = pc.fill_null(pc.match_substring_regex(texts, LIST), False)
        for number in np.flatnonzero(around.to_numpy(zero_copy_only=False)).tolist():
            text = texts[number].as_py()
            found[number] = any(list_of(text, kind) is not None for kind in ("list<int64>", "list<string>"))
    return found


def with_null(lists: Texts) -> npt.NDArray[np.bool_]:
    """bool[n], lists with a null inside: no column has a place for it."""
    found = np.zeros(len(lists), np.bool_)
    parents, items = pc.list_parent_indices(lists), pc.list_flatten(lists)
    found[np.asarray(parents.filter(items.is_null()))] = True
    return found


def missing(values: Texts, texts: tuple[str, ...] = NOTHING) -> pa.Array | pa.ChunkedArray:
    """bool[n], values that mean nothing: nulls, and some texts."""
    if not pa.types.is_string(values.type):
        return values.is_null(nan_is_null=True)
    found = pc.is_in(pc.utf8_trim_whitespace(values), pa.array(texts))
    return pc.or_(values.is_null(), pc.fill_null(found, True))


def misfits(values: Texts, found: pa.Array | pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """bool[n], values that mean something and were not read."""
    wrong = pc.and_(pc.invert(missing(values)), found.is_null())
    return np.asarray(wrong.to_numpy(zero_copy_only=False), np.bool_)


def _as_integers(text: Texts, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:  # some are beyond the type
        limit = 1 << (kind.bit_width - 1)
        numbers = (None if one is None else int(one) for one in text.to_pylist())
        return pa.array([one if one is not None and -limit <= one < limit else None for one in numbers], kind)


def _share(values: Texts, pattern: str) -> float:
    return float(pc.mean(pc.match_substring_regex(values, pattern).cast(pa.float64())).as_py())


def _beyond(values: Texts, limit: int) -> bool:
    """True if some whole number is not in [-limit, limit)."""
    long = values.filter(pc.greater(pc.utf8_length(values), 15))
    whole = long.filter(pc.match_substring_regex(long, WHOLE))
    return any(not -limit <= int(text.split(".")[0]) < limit for text in whole.to_pylist())
