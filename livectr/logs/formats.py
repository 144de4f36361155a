"""Log files as people have them, as a stream of record batches: CSV, Kaggle's layouts, Parquet.

A row that does not fit (wrong number of columns, a text where a number belongs, bytes that are no UTF-8) is
set aside with its reason; the rest continues. Nothing is loaded whole; `.gz` files are read as they are.
"""

import csv as text_csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from livectr.system.errors import ConfigError, reason_of

BLOCK_BYTES = 4 << 20
TYPES = {"int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(), "string": pa.string()}
CRITEO = {
    "label": "int32",
    **{f"I{i}": "int64" for i in range(1, 14)},
    **{f"C{i}": "string" for i in range(1, 27)},
}
AVAZU = {
    **dict(id="string", click="int32", hour="int64", C1="int32", banner_pos="int32"),
    **{f"{of}_{part}": "string" for of in ("site", "app") for part in ("id", "domain", "category")},
    **dict(device_id="string", device_ip="string", device_model="string"),
    **dict(device_type="int32", device_conn_type="int32"),
    **{f"C{i}": "int32" for i in range(14, 22)},
}


@dataclass(frozen=True)
class Layout:
    """Layout of the rows of a format.

    Args:
        columns: name → type, in file order; None: the header names the columns, types are inferred.
        key: column that partitions the log.
        time: column of event time, and the function that parses it.
        number_rows: add the column `row`, counted from 0, as a key.
    """

    columns: dict[str, str] | None = None
    header: bool = True
    delimiter: str = ","
    key: str | None = None
    time: str | None = None
    read_time: Callable[[Any], int] | None = None
    number_rows: bool = False


@dataclass
class BadRows:
    """Rows that were set aside. The first three are kept for a message; `keep` gets every row."""

    count: int = 0
    first: list[str] = field(default_factory=list)
    keep: Callable[[int, str, str], None] | None = None

    def add(self, row: int, reason: str, text: str) -> None:
        """`row` counts from 1, a header included."""
        self.count += 1
        if len(self.first) < 3:
            self.first.append(f"row {row}: {reason}")
        if self.keep:
            self.keep(row, reason, text)


def iso_ms(value: Any) -> int:
    """Epoch milliseconds of an ISO 8601 text (UTC unless it says so), or of a number that is that already."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value.strip())
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(value)


def avazu_ms(value: Any) -> int:
    """Epoch milliseconds of Avazu's YYMMDDHH (UTC)."""
    return iso_ms(
        f"20{value // 1_000_000:02d}-{value // 10_000 % 100:02d}-{value // 100 % 100:02d}T{value % 100:02d}"
    )


LAYOUTS = {
    "criteo": Layout(CRITEO, header=False, delimiter="\t", key="row", number_rows=True),
    "avazu": Layout(AVAZU, key="device_ip", time="hour", read_time=avazu_ms),
    "csv": Layout(),
    "parquet": Layout(),
    "jsonl": Layout(),
}


def open_log(path: Path) -> tuple[IO[bytes], IO[bytes]]:
    """(the content, the raw file, whose position is the progress). Raises ConfigError."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}.") from None
    return (gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw), raw  # type: ignore[return-value]


def read_csv(
    content: IO[bytes], layout: Layout, types: dict[str, str], bad: BadRows
) -> Iterator[pa.RecordBatch]:
    """Typed batches of a CSV or TSV file; `types` overrides types of the layout and inferred types.

    A blank is null. Raises ConfigError for a header without a column of the layout or of `types`.
    """
    names = list(layout.columns or ())
    if layout.header:
        names = header_of(content, layout)
    for name in (*(layout.columns or ()), *types):
        if name not in names:
            raise ConfigError(f"the file has no column {name!r}; its columns are {', '.join(names)}.")
    lines = 1 if layout.header else 0
    skipped: list[int] = []  # numbers of the lines that have no row in any batch

    def skip(row: Any) -> str:
        skipped.append(row.number)
        bad.add(row.number + lines, f"{row.actual_columns} columns, not {row.expected_columns}", row.text)
        return "skip"

    try:
        reader = csv.open_csv(
            content,
            read_options=csv.ReadOptions(column_names=names, block_size=BLOCK_BYTES, use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=layout.delimiter,
                quote_char=False if layout.delimiter == "\t" else '"',
                invalid_row_handler=skip,
            ),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary())),
        )
    except pa.ArrowInvalid as error:
        raise ConfigError(f"the file holds no row: {error}.") from None
    known = {**(layout.columns or {}), **types}
    read = 0
    for batch in _batches(reader):
        for name in names:
            if name and name not in known:
                known[name] = _infer(batch.column(name))
        wanted = [
            name for name in names if name
        ]  # a column without a name is a row number of whoever wrote it
        first = read
        read += batch.num_rows
        yield _typed(batch.select(wanted), known, first, bad, lines, skipped)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """Batches of a reader of CSV. Raises ConfigError for a row that it cannot hand over: it is no UTF-8."""
    try:
        yield from reader
    except pa.ArrowInvalid as error:
        raise ConfigError(f"a row cannot be read: {error}.") from None


def header_of(content: IO[bytes], layout: Layout) -> list[str]:
    """Names in the first line. Raises ConfigError for a line that names nothing, or a column twice."""
    try:
        line = content.readline().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("the first line is not UTF-8 text; is the file of another format?") from None
    try:
        names = next(text_csv.reader([line], delimiter=layout.delimiter), [])
    except text_csv.Error as error:
        raise ConfigError(f"the first line is no line of CSV ({error}).") from None
    if not any(names):
        raise ConfigError("the file is empty; it should begin with a line that names the columns.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"the header names {', '.join(twice)} twice.")
    return names


def _typed(
    batch: pa.RecordBatch, types: dict[str, str], first: int, bad: BadRows, lines: int, skipped: Sequence[int]
) -> pa.RecordBatch:
    """Convert binary columns to their types, without the rows that do not fit."""
    columns, reasons = [], dict[int, str]()
    for name in batch.schema.names:
        raw = batch.column(name)
        try:
            text = raw.cast(pa.string())
            text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
            columns.append(text.cast(TYPES[types[name]]))
        except pa.ArrowInvalid:  # some value does not fit: look at each
            values = []
            for i, value in enumerate(raw.to_pylist()):
                try:
                    values.append(_value(value, types[name]))
                except ValueError:
                    values.append(None)
                    reasons.setdefault(i, f"column {name!r} is {value!r}, not {types[name]}")
            columns.append(pa.array(values, TYPES[types[name]]))
    typed = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    if not reasons:
        return typed
    for i, reason in sorted(reasons.items()):
        row = first + i + 1
        for number in sorted(skipped):
            row += number <= row
        fields = (str(value, "utf-8", "replace") for value in batch.slice(i, 1).to_pylist()[0].values())
        bad.add(row + lines, reason, "\t".join(fields))
    return typed.filter(pa.array([i not in reasons for i in range(batch.num_rows)]))


def _value(raw: bytes, kind: str) -> Any:
    """One CSV value; None for a blank. Raises ValueError when it does not fit."""
    text = raw.decode()
    if not text:
        return None
    if kind == "string":
        return text
    if kind == "float64":
        return float(text)
    number, limit = int(text), 1 << (31 if kind == "int32" else 63)
    if not -limit <= number < limit:
        raise ValueError(text)
    return number


def _infer(column: pa.Array) -> str:
    """The type that holds every value of a first block; a column of blanks is a string."""
    values = [value for value in column.to_pylist() if value]
    for kind in ("int64", "float64"):
        try:
            for value in values:
                _value(value, kind)
        except ValueError:
            continue
        return kind if values else "string"
    return "string"


def read_parquet(path: Path) -> Iterator[pa.RecordBatch]:
    """Batches of a Parquet file, dictionaries decoded. Raises ConfigError when it is none."""
    try:
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(batch_size=1 << 16):
            plain = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
            yield pa.RecordBatch.from_arrays(plain, batch.schema.names)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {reason_of(error)}.") from None


def with_time(batch: pa.RecordBatch, column: str, read: Callable[[Any], int], bad: BadRows) -> pa.RecordBatch:
    """`column` as int64 epoch milliseconds; rows whose time cannot be read are set aside."""
    if column not in batch.schema.names:
        raise ConfigError(
            f"the file has no column {column!r}; its columns are {', '.join(batch.schema.names)}."
        )
    values = batch.column(column)
    if pa.types.is_timestamp(values.type):
        values = values.view(pa.timestamp(values.type.unit)).cast(pa.timestamp("us"), safe=False)
        times = pc.divide(values.cast(pa.int64()), 1000)
    else:
        seen: dict[Any, int | None] = {}  # hours and seconds repeat a lot
        for value in set(values.to_pylist()):
            try:
                seen[value] = read(value)
            except (ValueError, TypeError, OverflowError):
                seen[value] = None
        times = pa.array([seen[value] for value in values.to_pylist()], pa.int64())
    for i in range(len(times)) if times.null_count else ():
        if not times[i].is_valid:
            bad.add(0, f"{column!r} is {values[i].as_py()!r}, which is no time", str(values[i].as_py()))
    changed = batch.set_column(batch.schema.names.index(column), column, times)
    return changed.filter(times.is_valid()) if times.null_count else changed
