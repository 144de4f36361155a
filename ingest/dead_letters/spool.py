"""Spool: a bounded queue of lines on disk, which survives the process until the lines are delivered.

    append ─► active segment ─► flush: fsync        FOLDER/<writer>-<number>.jsonl
                   │ closed when it is full, or when the reader has no other segment
    next  ◄── closed segments, oldest first ─► done: the file is removed

A starting process takes over segments of earlier processes, also of other writers, because after an elastic
resume there may be fewer ranks. Lines of a segment that was being delivered when the process died are
delivered again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import IO

from livectr.system.disk import sync_directory
from livectr.system.errors import ConfigError

TOPIC = "livectr.dead_letters"
"""Topic of the lines; of a log of files, the folder that takes its place."""
SEGMENT_BYTES = 4 << 20


class Spool:
    """Queue of lines on disk; thread-safe.

    Args:
        folder: of the segment files.
        writer: number of this process.
        writers: number of processes that share the folder.
        most_bytes: size from which `full` is true; further lines are still accepted.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, writer: int = 0, writers: int = 1, most_bytes: int) -> None:
        self.folder = folder
        self._writer, self._most_bytes = writer, most_bytes
        self._lock = threading.Lock()
        self._closed: deque[tuple[Path, int, int]] = deque()  # segment, its lines and bytes
        self._active: IO[bytes] | None = None
        self._active_lines = self._active_bytes = 0
        self.letters = 0
        """Count of waiting lines."""
        self.bytes = 0
        """Bytes of waiting lines."""
        self._dirty = False
        self._number = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._take_over(writers)
            sync_directory(self.folder)
        except OSError as error:
            raise ConfigError(f"dead letters cannot wait in {folder}: {error.strerror}") from error

    def append(self, line: bytes) -> None:
        """Add a line, which ends with a line feed. It is on disk after the next `flush`."""
        with self._lock:
            if self._active is None:
                path = self.folder / f"{self._writer:05d}-{self._number:09d}.jsonl"
                self._number += 1
                self._active = path.open("xb")
                sync_directory(self.folder)
            self._active.write(line)
            self._dirty = True
            self._active_lines += 1
            self._active_bytes += len(line)
            self.letters += 1
            self.bytes += len(line)
            if self._active_bytes >= SEGMENT_BYTES:
                self._roll()

    def flush(self) -> None:
        """Sync all lines to disk; after it they survive a kill and a power cut."""
        with self._lock:
            if self._active is not None and self._dirty:
                self._sync(self._active)

    def next(self) -> Path | None:
        """The oldest segment, to be passed to `done` after delivery; None when no line waits."""
        with self._lock:
            if not self._closed and self._active is not None:
                self._roll()
            return self._closed[0][0] if self._closed else None

    def done(self, segment: Path) -> None:
        """Remove the segment that `next` returned."""
        with self._lock:
            segment.unlink(missing_ok=True)
            _, lines, size = self._closed.popleft()
            self.letters -= lines
            self.bytes -= size

    @property
    def full(self) -> bool:
        """True when the spool has reached its size limit."""
        return self.bytes >= self._most_bytes

    def close(self) -> None:
        """Sync all lines to disk; a second call does nothing."""
        with self._lock:
            if self._active is not None:
                self._roll()

    def _take_over(self, writers: int) -> None:
        for path in sorted(self.folder.glob("*.jsonl")):
            writer, _, number = path.stem.partition("-")
            if not writer.isdigit() or not number.isdigit() or int(writer) % writers != self._writer:
                continue
            if int(writer) == self._writer:
                self._number = max(self._number, int(number) + 1)
            lines = path.read_bytes().count(b"\n")
            size = path.stat().st_size
            self._closed.append((path, lines, size))
            self.letters += lines
            self.bytes += size

    def _roll(self) -> None:
        assert self._active is not None
        path = Path(self._active.name)
        self._sync(self._active)
        self._active.close()
        self._closed.append((path, self._active_lines, self._active_bytes))
        self._active, self._active_lines, self._active_bytes = None, 0, 0

    def _sync(self, file: IO[bytes]) -> None:
        file.flush()
        os.fsync(file.fileno())
        self._dirty = False
