"""Writes to a disk that may be full: an error that says what to free, instead of a bare OSError."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from livectr.system.errors import DiskFullError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """True if an OSError says that the disk, a quota or a file is full."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextmanager
def writing(what: str, path: Path | str) -> Iterator[None]:
    """Context that raises DiskFullError where its block finds the disk of `path` full.

    Args:
        what: subject of the message, such as "the checkpoint".
        path: file or folder that is written.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DiskFullError(
            f"no space is left for {what} ({path}: {error.strerror}); free space there, then start again: a "
            "trainer resumes from its last checkpoint"
        ) from None


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Writes all of `data` to an unbuffered file, which may accept a part of it at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def sync_directory(path: Path) -> None:
    """Makes the names inside a directory durable, so that renames survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
