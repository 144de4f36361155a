"""Files of a generation, written by a thread while training continues.

What a file holds is copied before it is handed over. Copies that wait for the disk are bounded: beyond
WAITING_BYTES, handing over waits for the oldest. Uploads to an object store read the files again: a
store that is away delays no step.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from livectr.system.disk import writing
from livectr.system.tensors import packed
from livectr.trainer.checkpoint.manifest import FileEntry

if TYPE_CHECKING:
    from livectr.trainer.checkpoint.stored import Stored

WAITING_BYTES = 256 << 20
"""Most bytes that wait for the disk, beside one file of any size."""

Columns = Mapping[str, list[npt.NDArray[Any]]]


@dataclass(frozen=True)
class File:
    """File that is being written.

    Attributes:
        rows: rows and erased keys in it.
        written: its entry in the manifest, once it is on disk.
    """

    rows: int
    written: Future[FileEntry]

    @property
    def entry(self) -> FileEntry:
        """Entry in the manifest. Waits for the disk. Raises DiskFullError."""
        return self.written.result()


class Writer:
    """Writes files of a checkpoint one after the other.

    Args:
        root: folder of the checkpoint; entries name files below it.
        stored: uploads them as well; None: the folder is all there is.
    """

    def __init__(self, root: Path, stored: Stored | None = None) -> None:
        self._root, self._stored = root, stored
        self._uploads: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: list[tuple[int, Future[FileEntry]]] = []

    def file(self, path: Path, kind: str, data: bytes, rows: int = 0) -> File:
        """Write bytes."""
        return self._hand(len(data), rows, lambda: self._write(path, kind, data, rows))

    def tensors(self, path: Path, kind: str, columns: Columns, rows: int = 0) -> File:
        """Write tensors as safetensors; each is given in parts, which are concatenated."""
        size = sum(part.nbytes for parts in columns.values() for part in parts)

        def write() -> FileEntry:
            whole = {name: np.concatenate(parts) for name, parts in columns.items()}
            return self._write(path, kind, packed(whole), rows)

        return self._hand(size, rows, write)

    def range(self, path: Path, kind: str, source: Path, part: tuple[int, int]) -> File:
        """Upload bytes [first, end) of another file, which are on disk already and do not change."""
        stored = self._stored
        assert stored is not None
        first, end = part

        def read() -> bytes:
            with source.open("rb") as file:
                file.seek(first)
                return file.read(end - first)

        def write() -> FileEntry:
            entry = self._entry(path, kind, read(), 0)
            self._uploads.append(stored.upload(entry.path, read))
            return entry

        return self._hand(0, 0, write)

    @property
    def has_room(self) -> bool:
        """True while handing over would not wait. Raises DiskFullError."""
        self._waiting = [(size, file) for size, file in self._waiting if not _settled(file)]
        return sum(size for size, _ in self._waiting) <= WAITING_BYTES // 2

    @property
    def idle(self) -> bool:
        """True if all files are written and uploaded. Raises DiskFullError, as the first one that is not."""
        self._waiting = [(size, file) for size, file in self._waiting if not _settled(file)]
        if self._waiting:
            return False
        self._uploads = [upload for upload in self._uploads if not _settled(upload)]
        return not self._uploads

    def wait(self) -> None:
        """Wait until all files are written and uploaded. Raises DiskFullError."""
        while self._waiting:
            self._waiting.pop(0)[1].result()
        while self._uploads:
            self._uploads.pop(0).result()

    def close(self) -> None:
        """End the thread, after the files that it was given."""
        self._thread.shutdown()

    def _hand(self, size: int, rows: int, write: Any) -> File:
        while self._waiting and sum(waiting for waiting, _ in self._waiting) > WAITING_BYTES:
            self._waiting.pop(0)[1].result()
        written = self._thread.submit(write)
        self._waiting.append((size, written))
        return File(rows, written)

    def _write(self, path: Path, kind: str, data: bytes, rows: int) -> FileEntry:
        with writing("the checkpoint", self._root):
            write_synced(path, data)
        entry = self._entry(path, kind, data, rows)
        if self._stored is not None:
            self._uploads.append(self._stored.upload(entry.path, path.read_bytes))
        return entry

    def _entry(self, path: Path, kind: str, data: bytes, rows: int) -> FileEntry:
        digest = hashlib.sha256(data).hexdigest()
        return FileEntry(str(path.relative_to(self._root)), kind, len(data), digest, rows)


def write_synced(path: Path, data: bytes) -> None:
    """Write and sync a file."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _settled(file: Future[Any]) -> bool:
    """True if a file is written or uploaded; raises what kept it from that."""
    if file.done():
        file.result()
    return file.done()
