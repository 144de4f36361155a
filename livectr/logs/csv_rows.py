"""CSV files as people have them, as batches of texts, with the line of every row.

The separator, quotes and escapes are found out from the first block: the dialect in which most of its rows
have as many fields as the header. A file that a spreadsheet wrote may begin with `sep=;`, and any file with
lines that begin with `#`. pyarrow parses what `kernels.stream.csv_records` has found to be whole rows of
UTF-8; all other lines are set aside, each with its reason.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as arrow_csv

from livectr.kernels.stream.csv_records import (
    COLUMNS,
    ENCODING,
    FITS,
    LONG,
    QUOTE,
    RETURN,
    Dialect,
    Records,
    csv_records,
)
from livectr.logs.account import LONGEST_LINE, LONGEST_ROW, Account
from livectr.logs.encoding import check_text, not_utf8
from livectr.logs.names import check_names
from livectr.system.errors import ConfigError, InternalError
from livectr.system.texts import visible

BLOCK_BYTES = 4 << 20
SEPARATORS = ",\t;|\x01"
"""Separators of fields; \x01 is Hive's."""
CLEARLY = 0.02
"""Share of a file that must fit better without quotes, or with escapes, than with quotes alone."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows of a file.

    Args:
        batch: n rows.
        places: int64[n], line of each, or its row in a file without lines; from 1.
    """

    batch: pa.RecordBatch
    places: I64


@dataclass(frozen=True)
class Head:
    """Beginning of a CSV file.

    Args:
        dialect: of the file.
        names: of the columns, in their order; "" for one without a name, which is a row number of whoever
            wrote it, or the nothing behind a separator at the end of each line.
        size: bytes before the first row.
        lines: lines before the first row.
        empty_end: each row ends with a separator, and nothing may stand behind it.
        text: the header; "" where the file has none.
    """

    dialect: Dialect
    names: list[str]
    size: int
    lines: int
    empty_end: bool = False
    text: str = ""

    @property
    def columns(self) -> list[str]:
        """Names of the columns that have one."""
        return [name for name in self.names if name]


def head_of(
    first: bytes, path: Path, *, names: Sequence[str] | None = None, separator: str | None = None
) -> Head:
    """Find out how a file is written.

    Args:
        first: its first block.
        path: of the file.
        names: of the columns, for a file without a line that names them.
        separator: of the fields; None: to be found.

    Raises:
        ConfigError: the text is not UTF-8, the header names no columns, or one twice.
    """
    check_text(first, path)
    at, lines = _before_header(first)
    if first[at:].startswith(b"sep="):
        line = first[at:].split(b"\n", 1)[0]
        separator = line[4:].decode().rstrip("\r") or separator
        at, lines = at + len(line) + 1, lines + 1
    text = first[at:]
    if names is not None:
        dialect = _likeliest(text, separator or SEPARATORS, len(names))
        return Head(dialect, list(names), at, lines)
    if _is_object(text.lstrip().split(b"\n", 1)[0]):
        raise ConfigError(f"{path} holds a JSON object a line; name it .jsonl.")
    dialect = _likeliest(text, separator or SEPARATORS)
    header = _records(text, dialect, 1)
    if not len(header) or not text.strip():
        raise ConfigError(f"{path} is empty; it should begin with a line that names the columns.")
    line = text[: header.stops[0]]
    if header.verdicts[0] == ENCODING or not _is_text(line):  # it may have odd quotes, too
        raise ConfigError(f"{path} line {lines + 1} is {not_utf8(line)} {path} > utf8-{path.name}")
    found = _fields(line, dialect)
    if header.verdicts[0] != FITS or not any(found):
        raise _no_header(text[:60], path)
    head = Head(
        dialect,
        [name.strip() for name in found],
        at + int(header.stops[0]),
        lines + header.line_count,
        text=text[: header.stops[0]].decode().rstrip("\r\n"),
    )
    if dialect.quote and any(re.fullmatch(r'\s+".+"', name) for name in found):
        mark = dialect.delimiter
        tight = f"sed 's/{mark} *\"/{mark}\"/g' {path} > tight-{path.name}"
        raise ConfigError(f"{path} has blanks between {mark!r} and quotes; write none: {tight}")
    if all(_is_number(name) for name in head.columns):
        raise _no_header(text[: header.stops[0]], path)
    check_names(head.columns, path)
    rest = text[header.stops[0] :]
    if _names_are_values(found, rest, dialect):
        raise _no_header(text[: header.stops[0]], path)
    widths = _records(rest, dialect, 100).fields
    named = len(list(filter(None, found)))
    if len(widths) and named == 1 and (most := int(np.median(widths))) > 2:
        raise ConfigError(
            f"{path} line {lines + 1} names one column, and most rows have {most}: delete the lines before "
            "the one that names the columns."
        )
    if len(found) == 1 and (mark := _unread_separator(found[0], rest)):
        raise ConfigError(
            f"{path}: its columns seem to be separated by {mark!r}; write commas, tabs, semicolons or bars."
        )
    if len(widths) and (widths == len(found) + 1).mean() > 0.5:
        return replace(head, names=[*head.names, ""], empty_end=True)
    return head


def csv_rows(content: IO[bytes], head: Head, account: Account) -> Iterator[Rows]:
    """Rows of a file; every column is a text, "" where it is empty.

    Args:
        content: the file, at its beginning.
        head: of the file.
        account: receives rows that do not fit. Rows that are handed out are not yet counted as kept.

    Raises:
        ConfigError: a line has no end.
    """
    content.read(head.size)
    for number, name in enumerate(head.names[: -1 if head.empty_end else None], 1):
        if not name:
            account.remark(f"column {number} has no name in the header: it is not read")
    line, text, last = head.lines, b"", False
    while not last:
        more = content.read(BLOCK_BYTES)
        last, text = not more, text + more
        if len(text) > LONGEST_LINE:
            raise account.no_lines(line + 1)
        found = csv_records(text, head.dialect, columns=len(head.names), longest=LONGEST_ROW, last=last)
        fits = found.verdicts == FITS
        for number in np.flatnonzero(~fits).tolist():
            _set_aside(text, found, number, head, account, line)
        for number, named in list(_repeats(text, found, fits, head)):
            place = line + 1 + int(found.lines[number])
            if named != head.names:
                raise _no_order(f"{account.path} {account.unit} {place}", named, head)
            account.set_aside(place, "header", "the header once more", head.text)
            fits[number] = False
        if fits.any():
            batch = _parsed(_joined(text, found, fits), head)
            if batch.num_rows != int(fits.sum()):
                raise InternalError(
                    f"{account.path}: {int(fits.sum())} rows from line {line + 1} on were parsed as "
                    f"{batch.num_rows}; please report it with the file"
                )
            yield from _named(Rows(batch, line + 1 + found.lines[fits]), head, account)
        text, line = text[found.used :], line + found.line_count


def _repeats(
    text: bytes, found: Records, fits: npt.NDArray[np.bool_], head: Head
) -> Iterator[tuple[int, list[str]]]:
    """Records that name most of the columns, as where files were joined end to end; and what they name."""
    names = [name.encode() for name in head.columns] if head.text else []
    longest = max(names, key=len, default=b"")
    at = text.find(longest) if longest else -1
    while at >= 0:
        number = int(np.searchsorted(found.begins, at, side="right")) - 1
        stop = int(found.stops[number])
        record = text[int(found.begins[number]) : stop]
        if fits[number] and 2 * sum(name in record for name in names) > max(2, len(names)):
            fields = _fields(record.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n"), head.dialect)
            named = [field.strip().strip('"') for field in fields]
            if 2 * len({*named} & {*head.columns}) > max(2, len(names)):
                yield number, named
        at = text.find(longest, max(at + len(longest), stop))


def _no_order(where: str, named: list[str], head: Head) -> ConfigError:
    shown = visible(head.dialect.delimiter.join(named), 60)
    return ConfigError(
        f"{where} names the columns once more, and in another way than the first line: {shown!r}; "
        "split the files that were joined there, and give their folder."
    )


def _named(rows: Rows, head: Head, account: Account) -> Iterator[Rows]:
    """Rows with the columns that have a name; none if nothing is left."""
    batch = rows.batch
    fits = np.ones(batch.num_rows, np.bool_)
    if head.empty_end:
        ends = batch.column(batch.num_columns - 1)
        fits = np.array([not text.strip() for text in ends.to_pylist()], np.bool_)
        for number in np.flatnonzero(~fits).tolist():
            text = head.dialect.delimiter.join(batch.slice(number, 1).to_pylist()[0].values())
            what = f"{len(head.names)} columns, not {len(head.names) - 1}"
            account.set_aside(int(rows.places[number]), "fields", what, text)
    places = [number for number, name in enumerate(head.names) if name]
    named = pa.RecordBatch.from_arrays([batch.column(place) for place in places], head.columns)
    if fits.all():
        yield Rows(named, rows.places)
    elif fits.any():
        yield Rows(named.filter(pa.array(fits)), rows.places[fits])


def _names_are_values(names: list[str], rest: bytes, dialect: Dialect) -> bool:
    """True where each column of the first row that is a number has a number for its name, and some have."""
    row = _records(rest, dialect, 1)
    if not len(row) or row.verdicts[0] != FITS:
        return False
    values = _fields(rest[row.begins[0] : row.stops[0]], dialect)
    numbers = [name for name, value in zip(names, values, strict=False) if _is_number(value)]
    return len(numbers) > 1 and all(map(_is_number, numbers))


def _unread_separator(name: str, rest: bytes) -> str:
    """A mark that is as often in nearly all rows as in the only column's name; "": there is none."""
    rows = [row for row in rest.decode(errors="replace").splitlines()[:100] if row]
    for mark in " ~:^#\x1f":
        count = name.strip().count(mark)
        if count and sum(row.strip().count(mark) == count for row in rows) > 0.9 * len(rows):
            return mark
    return ""


def _no_header(line: bytes, path: Path) -> ConfigError:
    shown = visible(line.decode(errors="replace").strip(), 60)
    return ConfigError(f"{path}: the first line must name the columns; it is {shown!r}.")


def _before_header(first: bytes) -> tuple[int, int]:
    """Bytes and lines before the header: a byte order mark, empty lines, and lines that begin with #."""
    at = lines = 0
    while first.startswith(codecs.BOM_UTF8, at):
        at += len(codecs.BOM_UTF8)
    while at < len(first) and (first[at : at + 1] == b"#" or not first[at:].split(b"\n", 1)[0].strip()):
        end = first.find(b"\n", at)
        if end < 0:
            break
        at, lines = end + 1, lines + 1
    return at, lines


def _likeliest(text: bytes, separators: str, columns: int | None = None) -> Dialect:
    """Dialect in which most rows of a block fit; of equals the one with more fields."""
    best, most = Dialect(separators[0]), (-1.0, 0)
    text = text[: 1 << 18]
    for separator in separators:
        for dialect in (Dialect(separator), Dialect(separator, quote=""), Dialect(separator, escape="\\")):
            found = _records(text, dialect)
            if not len(found):
                continue
            wanted = columns or int(found.fields[0])
            ends = np.where(found.fields == wanted + 1, 0.9, found.fields == wanted)  # of a row that ends so
            sizes = (found.stops - found.begins) * (found.verdicts == FITS)
            covered = float((sizes * ends).sum()) / max(1, int(found.stops[-1]))
            covered -= 0.0 if dialect == Dialect(separator) else CLEARLY  # a row may have an odd quote
            score = (round(covered, 3) if wanted > 1 else 0.0, wanted)
            if score > most:
                best, most = dialect, score
    return best


def _records(text: bytes, dialect: Dialect, most: int | None = None) -> Records:
    last = len(text) < BLOCK_BYTES // 16
    return csv_records(
        text, dialect, columns=0, longest=LONGEST_ROW, last=last or most is not None, most=most
    )


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fields(line: bytes, dialect: Dialect) -> list[str]:
    """Fields of a record."""
    reader = csv.reader(
        io.StringIO(line.decode("utf-8"), newline=""),
        delimiter=dialect.delimiter,
        quotechar=dialect.quote or None,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        escapechar=dialect.escape or None,
    )
    return next(reader, [])


def _joined(text: bytes, found: Records, fits: npt.NDArray[np.bool_]) -> bytes:
    """Records that fit, one behind the other."""
    (chosen,) = np.nonzero(fits)
    ends_run = np.flatnonzero(found.begins[chosen[1:]] != found.stops[chosen[:-1]])
    firsts = np.concatenate(([0], ends_run + 1))
    lasts = np.concatenate((ends_run, [len(chosen) - 1]))
    return b"".join(
        text[found.begins[chosen[first]] : found.stops[chosen[last]]]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    )


def _parsed(text: bytes, head: Head) -> pa.RecordBatch:
    dialect = head.dialect
    names = [str(number) for number in range(len(head.names))]
    table = arrow_csv.read_csv(
        pa.BufferReader(text),
        read_options=arrow_csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        parse_options=arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            escape_char=dialect.escape or False,
            newlines_in_values=True,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False, check_utf8=False
        ),
    )
    return table.combine_chunks().to_batches()[0]


def _set_aside(text: bytes, found: Records, number: int, head: Head, account: Account, line: int) -> None:
    row = text[found.begins[number] : found.stops[number]].rstrip(b"\r\n")
    place, fields, verdict = (
        line + 1 + int(found.lines[number]),
        int(found.fields[number]),
        int(found.verdicts[number]),
    )
    shown = row[:LONGEST_ROW].decode(errors="backslashreplace")
    if verdict == COLUMNS:
        kind, what = "fields", f"{fields} columns, not {len(head.names)}"
    elif verdict == QUOTE:
        kind, what = "quote", "a quote is not closed, or text follows it"
    elif verdict == LONG:
        account.set_aside_long(place, shown)
        return
    elif verdict == RETURN:
        kind, what = "return", "a carriage return (CR) without quotes is inside of the row"
    else:
        assert verdict == ENCODING, verdict
        kind, what = "encoding", not_utf8(row)
    account.set_aside(place, kind, what, shown)


def _is_object(line: bytes) -> bool:
    try:
        return line[:1] == b"{" and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
