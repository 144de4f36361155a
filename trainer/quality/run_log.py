"""Run log: what a run was like while it ran, as lines of JSON for `livectr report` and for programs.

Every line is an object with `kind`, `at_ms` (ms since 1970, by the clock) and `step`. docs/evaluation.md has
the fields of each kind:

    run      first line: format, models, fields, bins of scores
    start    a process of the run began
    window   measures of the examples of a window (trainer.quality.windows)
    sample   tables, dead letters and freshness, from time to time
    end      the report, when a process ended

Lines are appended whole, by one write each. A checkpoint names the length of the log in bytes. A resumed run
cuts the log back to it, so that no window is there twice.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from livectr.system.disk import write_all, writing
from livectr.system.errors import ConfigError

LOG = logging.getLogger(__name__)
FORMAT = "livectr run log"
VERSION = 1


class RunLog:
    """Append-only file of lines.

    Args:
        path: the file; it is made. `begin` or `resume` come before its first line.
        head: fields of the first line, which a new log begins with.

    Raises:
        ConfigError: the file is no run log, so that it is not written over.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._path, self._head = path, head
        self._file = path.open("r+b", buffering=0)
        if self._size and not is_run_log(self._file.read(200)):
            self._file.close()
            raise ConfigError(f"{path} is no run log, and is not written over; name another file.")

    def begin(self) -> None:
        """Begin again, with the first line."""
        self._cut(0)
        self.write("run", 0, {"format": FORMAT, "version": VERSION, **self._head})

    def resume(self, length: int) -> None:
        """Cut the log back to the bytes that a checkpoint names; a shorter log begins again, with a warning.

        Raises:
            ConfigError: the log ends inside of a line where the checkpoint's log ended.
        """
        size = self._size
        if size < length:
            LOG.warning(
                "the run log %s has %d bytes where the checkpoint counts %d: it begins again",
                self._path, size, length,
            )  # fmt: skip
            self.begin()
            return
        self._file.seek(length - 1)
        if self._file.read(1) != b"\n":
            raise ConfigError(
                f"the run log {self._path} is not what was written; bring it back, or move it away to go "
                "on without what it holds"
            )
        self._cut(length)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append a line; `values` are JSON values."""
        line = {"kind": kind, "at_ms": time.time_ns() // 1_000_000, "step": step, **values}
        with writing("the run log", self._path):
            write_all(self._file, json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n")

    def sync(self) -> int:
        """Make the log durable and return its length in bytes."""
        with writing("the run log", self._path):
            os.fsync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _cut(self, length: int) -> None:
        self._file.truncate(length)
        self._file.seek(length)


def is_run_log(begin: bytes) -> bool:
    """Tell by the first bytes of a file if it is a run log."""
    return begin.startswith(b'{"kind":"run",') and json.dumps(FORMAT).encode() in begin
