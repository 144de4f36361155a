"""Files of a content store: chunks of rows, each committed by the rename of its ids.

    DIR/store.json                             {"width": …, "encoder": …, "shards": …}
    DIR/shard-003/LOCK                         locked while a process appends to the shard
    DIR/shard-003/000001.features.npy          float16[n, width], memory-mapped by readers
    DIR/shard-003/000001.digests.npy           uint64[n], digests of the encoded pictures or texts
    DIR/shard-003/000001.sha256                checksums of these three files, for `sha256sum --check`
    DIR/shard-003/000001.ids.npy               int64[n], all different; renamed last
    DIR/shard-003/000001-000004.ids.npy        four merged chunks

Chunks are numbered in the order of writing; a row replaces the row of the same id in an earlier chunk. Every
file is synced before the rename of the ids, so that a chunk is complete or absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from livectr.system.disk import is_full, sync_directory
from livectr.system.errors import ConfigError

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F16 = npt.NDArray[np.float16]

FAN_IN = 4
"""Newest chunks of a shard that are merged when they have similar sizes."""
MERGED_BYTES = 1 << 30
"""Greatest size of the features of a merged chunk."""

KINDS = ("features", "digests", "ids")
"""Columns of a chunk, in the order of writing."""

_HEADERS = Lock()
"""Held while NumPy reads a header, with `ast.literal_eval`: CPython 3.11 may fail where two threads do
(SystemError: AST constructor recursion depth mismatch)."""
_IDS = re.compile(r"(\d{6,})(?:-(\d{6,}))?\.ids\.npy")


@dataclass(frozen=True, order=True)
class ChunkName:
    """Name of the chunk that holds the chunks `first` … `last` of a shard.

    The numbers are equal for a chunk that was appended.
    """

    shard: int
    first: int
    last: int

    def __str__(self) -> str:
        numbers = f"{self.first:06d}" + (f"-{self.last:06d}" if self.last != self.first else "")
        return f"shard-{self.shard:03d}/{numbers}"

    def path(self, root: Path, kind: str) -> Path:
        """File of a column."""
        return root / f"{self}.{kind}.npy"

    def sums(self, root: Path) -> Path:
        """File of the checksums."""
        return root / f"{self}.sha256"

    def covers(self, other: ChunkName) -> bool:
        """Return true if `other` was merged into this chunk."""
        return self != other and self.first <= other.first and other.last <= self.last


@dataclass(frozen=True)
class Chunk:
    """Chunk of n rows: ids int64[n], digests uint64[n], features float16[n, width], memory-mapped."""

    name: ChunkName
    ids: I64
    digests: U64
    features: F16


def shard_folder(root: Path, shard: int) -> Path:
    """Folder of a shard."""
    return root / f"shard-{shard:03d}"


def list_chunks(root: Path, shard: int) -> list[ChunkName]:
    """Chunks in the order of writing, without chunks that a merged chunk covers."""
    listed, before = _listed(root, shard), None
    while listed != before:  # a listing may miss files that are renamed meanwhile
        listed, before = _listed(root, shard), listed
    return [name for name in listed if not any(other.covers(name) for other in listed)]


def _listed(root: Path, shard: int) -> list[ChunkName]:
    try:
        entries = [path.name for path in shard_folder(root, shard).iterdir()]
    except FileNotFoundError:
        return []  # no row was appended to it
    matches = (match for entry in entries if (match := _IDS.fullmatch(entry)))
    names = (ChunkName(shard, int(match[1]), int(match[2] or match[1])) for match in matches)
    return sorted(names, key=lambda name: (name.last, name.first))


def open_chunk(root: Path, name: ChunkName, width: int) -> Chunk:
    """Open a chunk.

    Raises:
        ConfigError: a file is missing or truncated.
        FileNotFoundError: the chunk was merged into another meanwhile.
    """
    ids = _load(root, name, "ids", np.dtype(np.int64), (-1,))
    digests = _load(root, name, "digests", np.dtype(np.uint64), (len(ids),))
    features = _load(root, name, "features", np.dtype(np.float16), (len(ids), width))
    return Chunk(name, ids, digests, features)


def verify_chunk(root: Path, name: ChunkName) -> None:
    """Compare a chunk's files with their checksums. A chunk of an earlier version without checksums passes.

    Raises:
        ConfigError: a file has changed.
        FileNotFoundError: the chunk was merged into another meanwhile.
    """
    try:
        lines = name.sums(root).read_text().splitlines()
    except FileNotFoundError:
        if not name.path(root, "ids").exists():
            raise
        return
    except UnicodeDecodeError:
        raise _torn(name.sums(root), "is damaged") from None
    expected = {file: digest for digest, _, file in (line.partition("  ") for line in lines)}
    for kind in KINDS:
        path = name.path(root, kind)
        try:
            with path.open("rb") as file:
                written = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            if not name.path(root, "ids").exists():
                raise
            raise _torn(path, "is missing") from None
        if expected.get(path.name) != written:
            raise _torn(path, "is not what was written")


def append_chunk(root: Path, shard: int, ids: I64, features: F16, digests: U64) -> None:
    """Append rows as a shard's newest chunk, atomically; called within `shard_lock`.

    Files that a killed writer left behind are removed.
    """
    for scratch in shard_folder(root, shard).glob(".*.npy.*"):
        scratch.unlink()
    names = list_chunks(root, shard)
    for name in _listed(root, shard):
        if any(other.covers(name) for other in names):
            _remove(root, name)
    number = 1 + max((name.last for name in names), default=0)
    name = ChunkName(shard, number, number)
    _write(root, name, ids, [features], digests)
    _merge(root, [*names, name], features.shape[1])


def _write(root: Path, name: ChunkName, ids: I64, features: Sequence[F16], digests: U64) -> None:
    columns: tuple[Sequence[npt.NDArray[Any]], ...] = (features, [digests], [ids])
    paths = [name.path(root, kind) for kind in KINDS]
    try:
        sums = [_save(path, pieces) for path, pieces in zip(paths, columns, strict=True)]
        with _writable(name.sums(root)), name.sums(root).open("w") as file:
            file.writelines(f"{digest}  {path.name}\n" for path, digest in zip(paths, sums, strict=True))
            file.flush()
            os.fsync(file.fileno())
    except ConfigError:
        for path in paths:
            _scratch(path).unlink(missing_ok=True)
        raise
    for path in paths:
        _scratch(path).replace(path)
    sync_directory(shard_folder(root, name.shard))


def _merge(root: Path, names: list[ChunkName], width: int) -> None:
    """Merge a shard's newest FAN_IN chunks while they have similar sizes.

    As in an LSM tree, n appends leave about FAN_IN · log n chunks and write each row about log n times.
    """
    while len(names) >= FAN_IN:
        opened = [open_chunk(root, name, width) for name in names[-FAN_IN:]]
        sizes = [len(chunk.ids) for chunk in opened]
        if max(sizes) > FAN_IN * sizes[-1] or sum(sizes) * 2 * width > MERGED_BYTES:
            return
        for old in names[-FAN_IN:]:
            verify_chunk(root, old)  # a merged copy of damaged rows would get a valid checksum
        keep = last_of_each(np.concatenate([chunk.ids for chunk in opened]))
        starts = np.cumsum([0, *sizes])
        rows = [keep[(keep >= a) & (keep < b)] - a for a, b in itertools.pairwise(starts)]
        kept = [(chunk, own) for chunk, own in zip(opened, rows, strict=True) if len(own)]
        name = ChunkName(names[-1].shard, names[-FAN_IN].first, names[-1].last)
        _write(
            root,
            name,
            np.concatenate([chunk.ids[own] for chunk, own in kept]),
            [chunk.features[own] for chunk, own in kept],
            np.concatenate([chunk.digests[own] for chunk, own in kept]),
        )
        for old in names[-FAN_IN:]:
            _remove(root, old)
        names = [*names[:-FAN_IN], name]


def last_of_each(ids: I64) -> I64:
    """Last position of each different id, ascending."""
    _, last = np.unique(ids[::-1], return_index=True)
    return np.sort(len(ids) - 1 - last)


def _remove(root: Path, name: ChunkName) -> None:
    """Remove a chunk, its ids first. Processes that have it memory-mapped keep its data."""
    for kind in reversed(KINDS):
        name.path(root, kind).unlink(missing_ok=True)
    name.sums(root).unlink(missing_ok=True)


class _Summed:
    """File writer that computes the SHA-256 of the data."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        self.sha256.update(data)
        return self._file.write(data)


def _scratch(path: Path) -> Path:
    """Temporary name of a file until all files of its chunk are written."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def _save(path: Path, pieces: Sequence[npt.NDArray[Any]]) -> str:
    """Write and sync a .npy file of rows in pieces, under its temporary name; return its SHA-256."""
    rows, first = sum(map(len, pieces)), pieces[0]
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": (rows, *first.shape[1:])}
    with _writable(path), _scratch(path).open("wb") as file:
        summed = _Summed(file)
        np.lib.format.write_array_header_1_0(summed, header)
        for piece in pieces:
            summed.write(np.ascontiguousarray(piece).data)
        file.flush()
        os.fsync(file.fileno())
    return summed.sha256.hexdigest()


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Convert an OSError of the block to a ConfigError about `path`."""
    try:
        yield
    except OSError as error:
        hint = "free space there" if is_full(error) else "name another folder"
        raise ConfigError(f"{path} cannot be written ({error.strerror}); {hint}") from error


@contextmanager
def shard_lock(root: Path, shard: int) -> Iterator[None]:
    """Exclusive lock for appending to a shard, between processes and threads."""
    folder = shard_folder(root, shard)
    try:
        folder.mkdir(exist_ok=True)
        file = (folder / "LOCK").open("wb")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}); name another folder") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _load(
    root: Path, name: ChunkName, kind: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    path = name.path(root, kind)
    try:
        with _HEADERS:
            mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        values = mapped if kind == "features" else np.array(mapped)
    except FileNotFoundError:
        if kind == "ids" or not name.path(root, "ids").exists():
            raise
        raise _torn(path, "is missing") from None
    except (ValueError, EOFError, OSError) as error:
        raise _torn(path, "is cut short or damaged") from error
    wanted = tuple(len(values) if size < 0 else size for size in shape)
    if values.ndim != len(shape) or values.shape != wanted or values.dtype != dtype:
        raise _torn(path, f"holds {values.dtype}{list(values.shape)}, not {dtype}{list(wanted)}")
    return np.asarray(values)


def _torn(path: Path, what: str) -> ConfigError:
    chunk = path.name.partition(".")[0]
    return ConfigError(
        f"{path} {what}; delete {path.parent / chunk}.* and run what made them again: it fills the gap"
    )
