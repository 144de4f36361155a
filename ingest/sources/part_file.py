"""Part files of a log: JSON lines, Arrow IPC or Parquet, read by record number.

`read` returns the next lines or rows, or None with nothing to read at present. `final` says that the file no
longer grows: then an incomplete last line counts as a record. Log files only grow; a file that became shorter
is an error.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from livectr.system.errors import UserError
from livectr.system.file_kinds import LOOK_BYTES, kind_of, unlike
from livectr.system.texts import wide_encoding

_BLOCK_BYTES = 1 << 20
_LINE_BYTES = 1 << 16
_PIECE_ROWS = 16_384

Fetched: TypeAlias = Callable[[int], None]
"""Callback with the number of bytes fetched."""
_Batch: TypeAlias = tuple[pa.RecordBatch, float]
"""Rows, and the share of the file up to their end, about."""

_LINES = (".jsonl", ".json", ".ndjson")
SUFFIXES = (*_LINES, ".arrow", ".arrows", ".feather", ".parquet")


class UnreadableError(Exception):
    """Raised when a file, or the rest of it, is not in its format."""


class Part(Protocol):
    """Reader of a part file, from its beginning."""

    path: Path
    bytes_read: int
    """Bytes fetched so far: of lines, whole blocks; of Parquet, the column chunks in use; of an Arrow file,
    the buffers of the columns in use; of an Arrow stream, all bytes."""

    def skip(self, records: int, final: bool) -> int:
        """Skip `records` records; return their count, less when the file has fewer."""

    def read(self, final: bool) -> list[bytes] | pa.RecordBatch | None:
        """The next lines or rows; every line and every row is a record.

        Raises:
            UnreadableError: the file, or the rest of it, is not in its format.
        """

    def bytes_left(self) -> int:
        """Approximate count of bytes that are not read yet."""

    def close(self) -> None:
        """Close the file."""


def open_part(path: Path, columns: Collection[str], max_record_bytes: int, stop_bytes: int | None) -> Part:
    """Open the reader for a part file's extension.

    Args:
        path: of the file.
        columns: columns to read from Arrow and Parquet.
        max_record_bytes: longer lines are cut one byte after this length, which marks them as too long.
        stop_bytes: read JSON lines up to this offset, whatever is appended; None follows the file as it
            grows.
    """
    if path.suffix.lower() in _LINES:
        return _Lines(path, max_record_bytes, stop_bytes)
    return _Rows(path, columns)


def record_bytes(path: Path) -> float | None:
    """Bytes of a record, about, by the beginning of the file; None: it does not say."""
    try:
        if _is_parquet(path):
            return path.stat().st_size / max(1, int(pq.read_metadata(path).num_rows))
        with path.open("rb") as file:
            beginning = file.read(_LINE_BYTES) if path.suffix.lower() in _LINES else b""
    except Exception:  # `read` reports the error
        return None
    lines = beginning.count(b"\n")
    return (beginning.rfind(b"\n") + 1) / lines if lines else None


def first_record(path: Path, columns: Collection[str]) -> dict[str, int]:
    """CRC-32 of a file's first record: of each column's value, of a line under "".

    It stays the same while the file grows. {}: there is no record yet, or none that can be read.

    Args:
        path: of the file.
        columns: those of Arrow and Parquet that are looked at.
    """
    try:
        if path.suffix.lower() in _LINES:
            with path.open("rb") as file:
                line, end, _ = file.read(_LINE_BYTES).partition(b"\n")
            return {"": zlib.crc32(line.strip())} if end or len(line) == _LINE_BYTES else {}
        batches = _open_rows(path, columns, 0, lambda size: None)
        rows = next((batch for batch, _ in batches if batch.num_rows), None)
        row = rows.slice(0, 1).to_pylist()[0] if rows is not None else {}
    except Exception:  # `read` reports the error
        return {}
    return {name: zlib.crc32(repr(value).encode()) for name, value in row.items() if name in columns}


class _Lines:
    def __init__(self, path: Path, max_record_bytes: int, stop_bytes: int | None) -> None:
        self.path = path
        self.bytes_read = 0
        self._file = path.open("rb", buffering=0)
        self._limit = max_record_bytes + 1
        self._stop = stop_bytes
        self._at = 0  # bytes read
        self._rest = b""  # the beginning of an unfinished line
        with path.open("rb") as beginning:
            self._no_lines = _no_lines(beginning.read(max(LOOK_BYTES, _LINE_BYTES)), path)

    def skip(self, records: int, final: bool) -> int:
        if self._no_lines:
            return 0
        skipped = 0
        while skipped < records:
            block = self._block()
            if not block:
                if final and self._rest:
                    self._rest = b""
                    skipped += 1
                break
            lines = block.count(b"\n")
            if skipped + lines < records:
                skipped += lines
                self._rest = block[block.rfind(b"\n") + 1 :] if lines else self._rest + block
                self._rest = self._rest[: self._limit]
                continue
            cut = 0
            for _ in range(records - skipped):
                cut = block.index(b"\n", cut) + 1
            skipped = records
            self._file.seek(cut - len(block), 1)
            self._at += cut - len(block)
            self._rest = b""
        return skipped

    def read(self, final: bool) -> list[bytes] | None:
        if self._no_lines:
            raise UnreadableError(self._no_lines)
        while block := self._block():
            if self._at == len(block):
                block = block.removeprefix(codecs.BOM_UTF8)
            lines = (self._rest + block).split(b"\n")
            self._rest = lines.pop()[: self._limit]
            if lines:
                return lines
        if not final or not self._rest:
            return None
        lines, self._rest = [self._rest], b""
        return lines

    def bytes_left(self) -> int:
        return max(0, (self._stop or self.path.stat().st_size) - self._at)

    def close(self) -> None:
        self._file.close()

    def _block(self) -> bytes:
        want = _BLOCK_BYTES if self._stop is None else min(_BLOCK_BYTES, self._stop - self._at)
        block = self._file.read(want)
        self._at += len(block)
        self.bytes_read += len(block)
        if not block and self.path.stat().st_size < self._at:
            raise UserError(f"{self.path} became shorter while it was read; log files may only grow")
        return block


def _no_lines(first: bytes, path: Path) -> str:
    """Sentence on a file whose lines cannot be told, by its beginning; "" for lines of UTF-8."""
    if kind_of(first) is not None:
        return unlike(path, "JSON lines")
    if name := wide_encoding(first):
        return f"it is {name}, not UTF-8: iconv -f {name} -t UTF-8 {path}"
    if b"\n" not in first and b"}\r{" in first:
        return f"its lines end with CR alone: tr '\\r' '\\n' < {path}"
    return ""


class _Rows:
    """Reader of Arrow IPC files and streams, and Parquet.

    A file that is being written is opened again after it grew.
    """

    def __init__(self, path: Path, columns: Collection[str]) -> None:
        self.path = path
        self.bytes_read = 0
        self._columns = set(columns)
        self._row = 0
        self._batches: Iterator[_Batch] | None = None
        self._current: pa.RecordBatch | None = None  # what is left of the batch being read
        self._opened_bytes = 0  # size of the file when it was opened: all that the reader sees
        self._failed_bytes = -1  # size of the file when there was nothing (more) to read
        # Bytes of the file before the current batch, and up to its end, about; rows of the batch.
        self._before, self._after, self._batch_rows = 0.0, 0.0, 0

    def skip(self, records: int, final: bool) -> int:
        rows = _count_rows(self.path)
        self._row = min(records, rows)
        self._before = self._after = self.path.stat().st_size * self._row / max(1, rows)
        return self._row

    def read(self, final: bool) -> pa.RecordBatch | None:
        if self._current is None or self._current.num_rows == 0:
            if self._batches is None:
                self._opened_bytes = self.path.stat().st_size
                if self._opened_bytes == self._failed_bytes and not final:
                    return None
            try:
                self._batches = self._batches or _open_rows(
                    self.path, self._columns, self._row, self._fetched
                )
                self._current, share = next(self._batches, (None, 1.0))
                self._before, self._after = self._after, self._opened_bytes * share
                if self._current is not None:
                    self._current.validate(full=True)
                    self._batch_rows = self._current.num_rows
            except Exception as error:  # readers of damaged files raise whatever they stumble over
                self._batches, self._current, self._failed_bytes = None, None, self._opened_bytes
                if final and self._opened_bytes:  # a file of no bytes has no rows
                    wanted = "Parquet" if _is_parquet(self.path) else "Arrow IPC"
                    why = unlike(self.path, wanted) or f"{self.path} is no whole {wanted} ({error})"
                    raise UnreadableError(why) from error
                return None
            if self._current is None:
                # A stream may continue when the file has grown.
                self._batches, self._failed_bytes, self._before = None, self._opened_bytes, self._after
                return None
        piece = self._current.slice(0, _PIECE_ROWS)
        self._current = self._current.slice(_PIECE_ROWS)
        self._row += piece.num_rows
        return piece

    def bytes_left(self) -> int:
        left = self._current.num_rows / max(1, self._batch_rows) if self._current is not None else 0.0
        read = self._after - (self._after - self._before) * left
        return max(0, round(self.path.stat().st_size - read))

    def close(self) -> None:
        self._batches = self._current = None

    def _fetched(self, size: int) -> None:
        self.bytes_read += size


def column_names(path: Path) -> list[str]:
    """Names of all columns of an Arrow or Parquet file."""
    if _is_parquet(path):
        return list(pq.read_schema(path).names)
    with pa.OSFile(str(path)) as source:
        return list(_ipc_opener(path)(source).schema.names)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _open_ipc(path: Path, columns: Collection[str] | None) -> tuple[pa.OSFile, pa.RecordBatchReader, int]:
    """(file, reader, number of batches) of an IPC file; the number is -1 for an IPC stream."""
    # No memory map: a writer that truncates the file would kill this process with SIGBUS.
    source = pa.OSFile(str(path))
    opener = _ipc_opener(path)
    names = opener(source).schema.names
    source.seek(0)
    wanted = [number for number, name in enumerate(names) if columns is not None and name in columns]
    # An empty list would mean every column; the first carries the number of rows.
    reader = opener(source, options=pa.ipc.IpcReadOptions(included_fields=wanted or [0], use_threads=False))
    return source, reader, reader.num_record_batches if opener is pa.ipc.open_file else -1


def _ipc_opener(path: Path) -> Callable[..., pa.RecordBatchReader]:
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    opener: Callable[..., pa.RecordBatchReader] = pa.ipc.open_file if is_file else pa.ipc.open_stream
    return opener


def _ipc_batches(
    path: Path, columns: Collection[str] | None, fetched: Fetched = lambda size: None
) -> Iterator[_Batch]:
    if path.stat().st_size == 0:
        raise pa.ArrowInvalid(f"{path} is empty")
    source, reader, count = _open_ipc(path, columns)
    if count < 0:
        at = 0
        for batch in reader:
            fetched(source.tell() - at)
            at = source.tell()
            yield batch, min(1.0, at / path.stat().st_size)
    else:
        for number in range(count):
            batch = reader.get_batch(number)
            fetched(batch.get_total_buffer_size())
            yield batch, (number + 1) / count


def _count_rows(path: Path) -> int:
    """Rows that can be read; `read` reports what follows them."""
    count = 0
    try:
        if _is_parquet(path):
            return int(pq.read_metadata(path).num_rows)
        for batch, _ in _ipc_batches(path, None):
            count += batch.num_rows
    except Exception:  # `read` reports the error
        pass
    return count


def _open_rows(path: Path, columns: Collection[str], first: int, fetched: Fetched) -> Iterator[_Batch]:
    """Batches of the columns that exist, from row `first` on; `fetched` is called with the bytes of each."""
    if not _is_parquet(path):
        return _from_row(_ipc_batches(path, columns, fetched), first)
    file = pq.ParquetFile(path, pre_buffer=False)
    names = [name for name in file.schema_arrow.names if name in columns] or file.schema_arrow.names[:1]
    group = 0
    while group < file.num_row_groups and first >= file.metadata.row_group(group).num_rows:
        first -= file.metadata.row_group(group).num_rows
        group += 1
    groups = range(group, file.num_row_groups)
    return _from_row(_parquet_batches(file, groups, names, fetched), first)


def _parquet_batches(
    file: pq.ParquetFile, groups: range, names: Sequence[str], fetched: Fetched
) -> Iterator[_Batch]:
    rows = sum(file.metadata.row_group(group).num_rows for group in range(groups.start))
    for group in groups:
        fetched(chunk_bytes(file.metadata.row_group(group), names))
        for batch in file.iter_batches(_PIECE_ROWS, row_groups=[group], columns=names, use_threads=False):
            rows += batch.num_rows
            yield batch, rows / max(1, file.metadata.num_rows)


def chunk_bytes(group: pq.RowGroupMetaData, names: Collection[str]) -> int:
    """Bytes that the chunks of some columns take in a row group of a Parquet file."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    wanted = tuple(f"{name}." for name in names)  # a list's chunk has the path column.list.element
    return sum(
        chunk.total_compressed_size for chunk in chunks if f"{chunk.path_in_schema}.".startswith(wanted)
    )


def _from_row(batches: Iterator[_Batch], first: int) -> Iterator[_Batch]:
    for batch, share in batches:
        if first < batch.num_rows:
            yield batch.slice(first), share
        first = max(0, first - batch.num_rows)
