"""Rows of a log file as Arrow batches: CSV with any separator, JSON lines, Parquet.

Texts stay texts: types are guessed later, from many rows. Objects inside of rows become columns of their own
(`context.os` becomes `context_os`).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from livectr.logs.formats import LAYOUTS, BadRows, header_of, open_log, read_csv, read_parquet
from livectr.system.errors import ConfigError

SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}
SEPARATORS = ",\t;|"
NOTHING = ("NA", "N/A", "n/a", "NULL", "null", "None", "NaN", "nan", "\\N")
"""Texts of a CSV file that mean that there is no value."""
JSON_ROWS = 20_000

Progress = Callable[[int], None]
"""Called with the bytes that were read so far."""


def format_of(path: Path) -> str:
    """Format by the file's suffix: "csv", "jsonl" or "parquet"; ".gz" does not count.

    Raises:
        ConfigError: another suffix.
    """
    name = path.name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"{path}: the name does not say what the file is; name it .csv, .tsv, .jsonl or .parquet."
        )
    return SUFFIXES[suffix]


def read_rows(path: Path, bad: BadRows, progress: Progress = lambda done: None) -> Iterator[pa.RecordBatch]:
    """Batches of a file's rows; CSV columns are texts, blanks are null.

    Args:
        path: of the file.
        bad: receives rows that are not of the file's form.
        progress: called after each batch.

    Raises:
        ConfigError: the file cannot be read, or is not of its format.
    """
    kind = format_of(path)
    content, raw = open_log(path)
    try:
        if kind == "parquet":
            batches = _flat(read_parquet(path))
        else:
            batches = _csv(content, path, bad) if kind == "csv" else _json(content, path, bad)
        done = 0
        for batch in batches:
            done = raw.tell() if kind != "parquet" else done + batch.nbytes
            progress(done)
            yield batch
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} is no whole gzip file ({error}); fetch it again.") from None
    finally:
        raw.close()


def _csv(content: IO[bytes], path: Path, bad: BadRows) -> Iterator[pa.RecordBatch]:
    first = content.readline()
    content.seek(0)
    separator = max(SEPARATORS, key=lambda mark: first.count(mark.encode()))
    layout = replace(LAYOUTS["csv"], delimiter=separator)
    names = header_of(content, layout)
    content.seek(0)
    if all(_is_number(name) for name in names if name):
        raise ConfigError(f"{path}: the first line must name the columns; it is {first.decode().strip()!r}.")
    for batch in read_csv(content, layout, dict.fromkeys(filter(None, names), "string"), bad):
        yield pa.RecordBatch.from_arrays(list(map(_without_marks, batch.columns)), schema=batch.schema)


def _without_marks(values: pa.Array) -> pa.Array:
    """Texts, null where they are a mark for nothing."""
    marked = pc.is_in(values, pa.array(NOTHING))
    return pc.if_else(marked, pa.scalar(None, values.type), values) if pc.any(marked).as_py() else values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _json(content: IO[bytes], path: Path, bad: BadRows) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    names: dict[str, None] = {}
    for number, line in enumerate(content, 1):
        if number == 1 and line.lstrip()[:1] == b"[":
            raise ConfigError(
                f"{path} is one JSON array; write an object a line: jq -c '.[]' {path} > rows.jsonl"
            )
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("no JSON object")
        except (ValueError, RecursionError) as error:
            bad.add(number, str(error), line.decode(errors="replace").rstrip())
            continue
        rows.append(_flattened(row))
        names |= dict.fromkeys(rows[-1])
        if len(rows) == JSON_ROWS:
            yield _batch(rows, names)
            rows = []
    if rows:
        yield _batch(rows, names)


def _flattened(row: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= _flattened(value, f"{above}{name}_") if isinstance(value, dict) else {above + name: value}
    return flat


def _batch(rows: list[dict[str, Any]], names: dict[str, None]) -> pa.RecordBatch:
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowException, OverflowError):  # of several types
            texts = [
                value if value is None or isinstance(value, str) else json.dumps(value) for value in values
            ]
            arrays.append(pa.array(texts, pa.string()))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _flat(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        while any(pa.types.is_struct(kind) for kind in batch.schema.types):
            table = pa.Table.from_batches([batch]).flatten().combine_chunks()
            names = [name.replace(".", "_") for name in table.column_names]
            batch = table.rename_columns(names).to_batches()[0]
        yield batch
