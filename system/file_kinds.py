"""Kind of a file by its first bytes, for files that are not what their name says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOOK_BYTES = 512


@dataclass(frozen=True)
class FileKind:
    """Kind of a file.

    Args:
        name: as in "it is …".
        suffix: that says so, of files that LiveCTR reads; "": it reads none.
        cure: command or words that make such a file readable.
    """

    name: str
    suffix: str
    cure: str


def _renamed(name: str, suffix: str) -> FileKind:
    return FileKind(name, suffix, f"name it {suffix}")


_BY_MARK: tuple[tuple[bytes, FileKind], ...] = (
    (b"PK\x03\x04", FileKind("a ZIP archive, as .zip and .xlsx are", "", "unpack it, or export it as CSV")),
    (b"\x1f\x8b", _renamed("gzipped", ".gz")),
    (b"BZh", FileKind("compressed by bzip2", "", "unpack it: bunzip2")),
    (b"\xfd7zXZ\0", FileKind("compressed by xz", "", "unpack it: unxz")),
    (b"\x28\xb5\x2f\xfd", FileKind("compressed by zstd", "", "unpack it: unzstd")),
    (b"PAR1", _renamed("Parquet", ".parquet")),
    (b"ARROW1", _renamed("Arrow IPC", ".arrow")),
    (b"\xff\xff\xff\xff", _renamed("an Arrow IPC stream", ".arrow")),
    (b"ORC", FileKind("ORC", "", "write it as Parquet")),
    (b"Obj\x01", FileKind("an Avro file", "", "write it as Parquet")),
    (b"SQLite format 3\0", FileKind("a database of SQLite", "", "export its table as CSV")),
    (b"\xd0\xcf\x11\xe0", FileKind("a file of Excel", "", "export it as CSV")),
    (b"\x89HDF", FileKind("HDF5", "", "write it as Parquet")),
)


def kind_of(first: bytes) -> FileKind | None:
    """Kind of a file by its first bytes; None: it is empty, or of no known kind."""
    for mark, kind in _BY_MARK:
        if first.startswith(mark):
            return kind
    return None


def unlike(path: Path, wanted: str) -> str:
    """Sentence on a file that is not of the wanted format, without its end; "" if nothing is known of it."""
    with path.open("rb") as file:
        first = file.read(LOOK_BYTES)
    if not first:
        return f"{path} is empty"
    kind = kind_of(first)
    if kind is not None and wanted in kind.name:  # it is damaged
        return ""
    if kind is not None:
        # Only `init` and `logs replay` read .gz, and texts alone.
        cure = "unpack it: gunzip" if kind.suffix == ".gz" else kind.cure
        return f"{path} is {kind.name}, not {wanted}; {cure}"
    if b"\0" not in first:
        return f"{path} is text, not {wanted}; name it .csv or .jsonl"
    return ""
