"""Log files as people have them: CSV, JSON lines or Parquet, read in one way for every command.

A row that does not fit is set aside with its reason, and the rest continues; nothing is loaded whole, and
`.gz` files are read as they are.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from livectr.logs.account import Account
from livectr.logs.arrow_rows import parquet_rows
from livectr.logs.csv_rows import BLOCK_BYTES, Head, Rows, csv_rows, head_of
from livectr.logs.formats import Layout
from livectr.logs.json_rows import check_lines, json_rows
from livectr.system.errors import ConfigError, reason_of

SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}

Progress = Callable[[int], None]
"""Called with the bytes that were read so far."""


def format_of(path: Path) -> str:
    """Format by the file's suffix: "csv", "jsonl" or "parquet"; ".gz" does not count.

    Raises:
        ConfigError: another suffix.
    """
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"{path}: the name does not say what the file is; name it .csv, .tsv, .jsonl or .parquet."
        )
    return SUFFIXES[suffix]


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
        yield (gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw), raw  # type: ignore[misc]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} is no whole gzip file ({error}); fetch it again.") from None
    finally:
        raw.close()


def log_rows(
    account: Account,
    kind: str | None = None,
    layout: Layout | None = None,
    progress: Progress = lambda done: None,
) -> Iterator[Rows]:
    """Rows of a file; columns of CSV are texts, others have plain types.

    Args:
        account: of the file; receives the rows that do not fit.
        kind: "csv", "jsonl" or "parquet"; None: by the file's name.
        layout: of a CSV file that is known; None: it is found out.
        progress: called after each batch.

    Raises:
        ConfigError: the file cannot be read, or is not of its format.
    """
    path, kind = account.path, kind or format_of(account.path)
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


def _head(first: bytes, path: Path, layout: Layout | None) -> Head:
    if layout is None:
        return head_of(first, path)
    names = None if layout.header else list(layout.columns or ())
    return head_of(first, path, names=names, separator=layout.delimiter)
