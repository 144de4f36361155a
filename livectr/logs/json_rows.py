"""JSON lines as batches, with the line of every row. Objects inside of rows become columns of their own."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from livectr.logs.account import LONGEST_LINE, LONGEST_ROW, Account
from livectr.logs.csv_rows import Rows
from livectr.logs.encoding import check_text, not_utf8
from livectr.logs.names import INSIDE, check_names, one_column
from livectr.system.errors import ConfigError
from livectr.system.json_objects import refuse_repeated
from livectr.system.texts import visible

BATCH_ROWS = 20_000
_INT64 = 1 << 63


def check_lines(first: bytes, path: Path) -> None:
    """Check that a file holds an object a line, by its first block.

    Raises:
        ConfigError: it is an array, objects over several lines, or no UTF-8.
    """
    check_text(first, path)
    text = first.removeprefix(codecs.BOM_UTF8).lstrip()
    line = text.split(b"\n", 1)[0].strip()
    if text[:1] == b"[":
        raise ConfigError(
            f"{path} is one JSON array; write an object a line: jq -c '.[]' {path} > rows.jsonl"
        )
    if line[-1:] == b"," and _is_object(line[:-1]):
        raise ConfigError(
            f"{path}: each line ends with a comma; write lines without it: sed 's/, *$//' {path} > rows.jsonl"
        )
    if line in (b"{", b"}") or (text[:1] == b"{" and line[-1:] in (b"{", b",", b"[")):
        raise ConfigError(
            f"{path} has objects over several lines; write one a line: jq -c . {path} > rows.jsonl"
        )
    if text and not any(one.lstrip()[:1] == b"{" for one in text.split(b"\n")):
        shown = visible(line.decode(errors="replace"), 40)
        raise ConfigError(
            f"{path} holds no JSON object a line; its first is {shown!r}: if it is CSV, name it .csv."
        )


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(_DECODE(line.decode()), dict)
    except (ValueError, RecursionError):
        return False


def json_lines(content: IO[bytes], account: Account) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Line number, line and object of every row that fits; the account receives the others.

    Raises:
        ConfigError: a line has no end.
    """
    line_number = 0
    while line := content.readline(LONGEST_LINE):
        line_number += 1
        if len(line) == LONGEST_LINE:
            raise account.no_lines(line_number)
        while line_number == 1 and line.startswith(codecs.BOM_UTF8):
            line = line.removeprefix(codecs.BOM_UTF8)
        if not (line := line.strip()):
            continue
        if len(line) > LONGEST_ROW:
            account.set_aside_long(line_number, line[:LONGEST_ROW].decode(errors="backslashreplace"))
            continue
        try:
            row = _DECODE(line.decode())
            if not isinstance(row, dict):
                raise ValueError("no JSON object")
            row_names(row)
        except UnicodeDecodeError:
            account.set_aside(line_number, "encoding", not_utf8(line), line.decode(errors="backslashreplace"))
        except (ValueError, RecursionError) as error:
            what = "nested too deeply" if isinstance(error, RecursionError) else f"{error}"
            account.set_aside(line_number, "json", what, line.decode(errors="backslashreplace"))
        else:
            yield line_number, line, row


def json_rows(content: IO[bytes], account: Account) -> Iterator[Rows]:
    """Rows of a file of JSON lines.

    Whole numbers beyond int64 make a column of texts; so do values of several types.

    Raises:
        ConfigError: two names become one, or a line has no end.
    """
    rows: list[dict[str, Any]] = []
    places: list[int] = []
    names: dict[str, None] = {}
    for number, _, row in json_lines(content, account):
        try:
            rows.append(flattened(row, account.paths))
        except ValueError as error:
            raise ConfigError(f"{account.path}: line {number}: {error}") from None
        places.append(number)
        new = rows[-1].keys() - names.keys()
        if new:
            check_names([name for name in rows[-1] if name in new], account.path)
            names |= dict.fromkeys(name for name in rows[-1] if name in new)
        if len(rows) == BATCH_ROWS:
            yield Rows(batch_of(rows, names), np.array(places, np.int64))
            rows, places = [], []
    if rows:
        yield Rows(batch_of(rows, names), np.array(places, np.int64))


def flattened(row: dict[str, Any], paths: dict[str, str]) -> dict[str, Any]:
    """Row without objects: `{"a": {"b": 1}}` is `{"a_b": 1}`.

    Args:
        row: of a log.
        paths: of the columns of all rows before.

    Raises:
        ValueError: two names become one, in this row or over all of them.
    """
    flat: dict[str, Any] = {}
    _flatten(row, "", "", flat, paths)
    return flat


def _flatten(row: dict[str, Any], above: str, path: str, flat: dict[str, Any], paths: dict[str, str]) -> None:
    for name, value in row.items():
        if isinstance(value, dict):
            _flatten(value, f"{above}{name}_", f"{path}{name}{INSIDE}", flat, paths)
        else:
            one_column(paths, above + name, path + name)
            flat[above + name] = value


def row_names(row: dict[str, Any]) -> None:
    """Raise ValueError for a text that no UTF-8 has: half of a surrogate pair, in a name or a value."""
    for name, value in row.items():
        for text in (name, *_texts(value)):
            if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise ValueError(f"half of a surrogate pair in {name!r}") from None


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _number(text: str) -> float:
    """A number with a fraction. Raises ValueError for one that no double holds."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is beyond every double")
    return value


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON; write null")


_DECODE = json.JSONDecoder(
    object_pairs_hook=refuse_repeated, parse_float=_number, parse_constant=_refuse
).decode


def batch_of(rows: list[dict[str, Any]], names: dict[str, None]) -> pa.RecordBatch:
    """Rows as a batch of these columns. Values of several types, and numbers beyond int64, make texts."""
    return pa.RecordBatch.from_arrays(
        [_column([row.get(name) for row in rows]) for name in names], list(names)
    )


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    wide = int in kinds and any(type(value) is int and not -_INT64 <= value < _INT64 for value in values)
    if not wide and kinds <= {int, float} and len(kinds) == 2:
        wide = any(type(value) is int and abs(value) > 1 << 53 for value in values)
    if not wide and not (bool in kinds and len(kinds) > 1):
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError):  # of several types
            pass
    return pa.array(
        [
            one if one is None or isinstance(one, str) else json.dumps(one, ensure_ascii=False)
            for one in values
        ],
        pa.string(),
    )
