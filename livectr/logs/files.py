"""Log files as people have them: CSV, JSON lines or Parquet, read in one way for every command.

A row that does not fit is set aside with its reason, and the rest continues; nothing is loaded whole, and
`.gz` files are read as they are. A folder is all files in it, in the order of their paths; a folder named
`dt=2026-11-24` (Hive's partitions) is a column `dt` of their rows.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import pyarrow as pa

from livectr.logs.account import Account
from livectr.logs.arrow_rows import parquet_rows
from livectr.logs.csv_rows import BLOCK_BYTES, Head, Rows, csv_rows, head_of
from livectr.logs.formats import Layout, headless
from livectr.logs.json_rows import check_lines, json_lines, json_rows
from livectr.system.errors import ConfigError, reason_of
from livectr.system.file_kinds import LOOK_BYTES, FileKind, kind_of

SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}

ARROW_SUFFIXES = (".arrow", ".arrows", ".feather")
GZIP_MARK = b"\x1f\x8b"
EMPTY_BYTES = 1024
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Value of a partition's folder for rows without one."""

Progress = Callable[[int], None]
"""Called with the bytes that were read so far."""


def format_of(path: Path) -> str:
    """Format by the file's suffix: "csv", "jsonl" or "parquet"; ".gz" does not count.

    Raises:
        ConfigError: another suffix.
    """
    kind = _format_or_none(path)
    if path.suffix.lower() in ARROW_SUFFIXES:
        raise ConfigError(
            f"{path} is Arrow IPC, which training reads as it is, in a folder of its topic: "
            "--source file:DIR. Here write it as Parquet."
        )
    if kind is None:
        if (found := _mark_of(path)) is not None:
            raise ConfigError(f"{path} is {found.name}; {found.cure}.")
        raise ConfigError(
            f"{path}: the name does not say what the file is; name it .csv, .tsv, .jsonl or .parquet."
        )
    return kind


def _mark_of(path: Path) -> FileKind | None:
    """Kind of a file by its first bytes; None: it has none, or cannot be read."""
    try:
        with path.open("rb") as file:
            return kind_of(file.read(LOOK_BYTES))
    except OSError:
        return None


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Content of a file, and the raw file, whose position is the progress.

    Raises:
        ConfigError: it cannot be read, or is no whole gzip file.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}.") from None
    try:
        yield (gzip.GzipFile(fileobj=raw) if path.suffix.lower() == ".gz" else raw), raw  # type: ignore[misc]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raw.seek(0)
        if not raw.read(2) == GZIP_MARK:
            raise ConfigError(f"{path} is not gzipped; name it without .gz.") from None
        raise ConfigError(f"{path} is no whole gzip file ({error}); fetch it again.") from None
    finally:
        raw.close()


def log_rows(
    account: Account,
    kind: str | None = None,
    layout: Layout | None = None,
    progress: Progress = lambda done: None,
    most: int | None = None,
) -> Iterator[Rows]:
    """Rows of a file or a folder; columns of CSV are texts, others have plain types.

    Args:
        account: of the file; receives the rows that do not fit.
        kind: "csv", "jsonl" or "parquet"; None: by the file's name.
        layout: of a CSV file that is known; None: it is found out.
        progress: called after each batch.
        most: rows that are read of each file of a folder, about; None: all.

    Raises:
        ConfigError: the file cannot be read, is not of its format, or the folder has none.
    """
    if not account.path.is_dir():
        yield from _file_rows(account, kind or format_of(account.path), layout, progress)
        return
    done = 0
    for path in files_of(account, kind):
        count, inside = 0, account.of_file(path)
        for rows in _file_rows(inside, kind or format_of(path), layout, _behind(done, progress)):
            account.unit, count = inside.unit, count + len(rows.places)
            yield Rows(_with_partitions(rows.batch, path.relative_to(account.path)), rows.places)
            if most is not None and count >= most:
                break
        done += path.stat().st_size


@dataclass(frozen=True)
class Line:
    """Object of a file of JSON lines.

    Args:
        account: of its file.
        number: of the line, from 1.
        text: the line.
        row: the object, with the columns of the folders.
    """

    account: Account
    number: int
    text: bytes
    row: dict[str, Any]


def log_lines(account: Account, progress: Progress = lambda done: None) -> Iterator[Line]:
    """Objects of a file or a folder of JSON lines, as `log_rows`.

    Raises:
        ConfigError: the file cannot be read, is none of JSON lines, or the folder has none.
    """
    done, folder = 0, account.path if account.path.is_dir() else None
    for path in [account.path] if folder is None else files_of(account, "jsonl"):
        inside = account if folder is None else account.of_file(path)
        named = {} if folder is None else dict(_partitions(path.relative_to(folder)))
        with opened(path) as (content, raw):
            check_lines(content.read(BLOCK_BYTES), path)
            content.seek(0)
            for number, text, row in json_lines(content, inside):
                if new := {name: value for name, value in named.items() if name not in row}:
                    row = row | new
                    text = json.dumps(row, ensure_ascii=False).encode()
                yield Line(inside, number, text, row)
                progress(done + raw.tell())
        done += path.stat().st_size


def _behind(done: int, progress: Progress) -> Progress:
    """Progress in a file behind others of `done` bytes."""
    return lambda now: progress(done + now)


def files_of(account: Account, kind: str | None = None) -> list[Path]:
    """Log files in a folder and the folders in it, links as well; the account names the others.

    They are in the order of their paths, and numbers in these in theirs: part-2 is before part-10.

    Args:
        account: of the folder.
        kind: format of the files that are read; None: all.

    Raises:
        ConfigError: there is none, or a link leads nowhere.
    """
    root = account.path
    found = sorted(_inside(root), key=_by_numbers)
    chosen = [path for path in found if (of := _format_or_none(path)) and kind in (None, of)]
    if others := [path.relative_to(root).as_posix() for path in found if path not in chosen]:
        account.remark(f"{len(others):,} files of {root} are not read: {', '.join(others[:3])}")
    if not chosen:
        raise ConfigError(f"{root} has no file that ends in {', '.join(SUFFIXES)}.")
    return chosen


def _inside(root: Path) -> Iterator[Path]:
    """Files in a folder, and in the folders in it, but those whose names begin with "." or "_".

    Raises:
        ConfigError: a link leads nowhere, or into a folder that it is in.
    """
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if name[0] not in "._"]
        here = Path(folder)
        around = {one.resolve() for one in (here, *here.parents)}
        for name in folders:
            if (here / name).resolve() in around:
                raise ConfigError(f"{here / name} links to a folder that it is in; remove the link.")
        for path in (here / name for name in files if name[0] not in "._"):
            if not path.exists():
                raise ConfigError(f"{path} links to nothing; mend or remove the link.")
            if path.is_file():
                yield path


def _by_numbers(path: Path) -> tuple[str | int, ...]:
    """Parts of a path in turn: text, number, text, and so on."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", path.as_posix()))


def layout_of(path: Path) -> Layout | None:
    """Layout of a file without a header whose columns are known; None: another file."""
    if path.is_dir() or _format_or_none(path) != "csv":
        return None
    with opened(path) as (content, _):
        return headless(content.read(BLOCK_BYTES))


def _format_or_none(path: Path) -> str | None:
    return SUFFIXES.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def _with_partitions(batch: pa.RecordBatch, path: Path) -> pa.RecordBatch:
    """Rows with a column for each folder that is named NAME=VALUE, unless they have it."""
    for name, value in _partitions(path):
        if name not in batch.schema.names:
            batch = batch.append_column(name, pa.array([value] * batch.num_rows, pa.string()))
    return batch


def _partitions(path: Path) -> Iterator[tuple[str, str | None]]:
    """Name and value of each folder that is named NAME=VALUE."""
    for part in path.parent.parts:
        name, mark, text = part.partition("=")
        if mark and name:
            yield name, None if text == NO_PARTITION else unquote(text)


def _file_rows(account: Account, kind: str, layout: Layout | None, progress: Progress) -> Iterator[Rows]:
    path = account.path
    if account.inside and _is_empty(path):
        account.remark(f"{account.inside} is empty")
        return
    if kind == "parquet":
        account.unit, done = "row", 0
        for rows in parquet_rows(account):
            done += rows.batch.nbytes
            progress(done)
            yield rows
        return
    with opened(path) as (content, raw):
        first = content.read(BLOCK_BYTES)
        content.seek(0)
        if kind == "csv":
            found = csv_rows(content, _head(first, path, layout), account)
        else:
            check_lines(first, path)
            found = json_rows(content, account)
        for rows in found:
            progress(raw.tell())
            yield rows


def _is_empty(path: Path) -> bool:
    """True for a file of no bytes, gzipped or not, as some writers leave them in a folder."""
    if path.stat().st_size > EMPTY_BYTES:
        return False
    with opened(path) as (content, _):
        return not content.read(EMPTY_BYTES).strip()


def _head(first: bytes, path: Path, layout: Layout | None) -> Head:
    if layout is None and (layout := headless(first)) is None:
        return head_of(first, path)
    names = None if layout.header else list(layout.columns or ())
    return head_of(first, path, names=names, separator=layout.delimiter)
