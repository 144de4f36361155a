"""Writing where the disk may be full: one error that says what to free, in place of a bare OSError."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from livectr.kernels.errors import DiskFullError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Whether an OSError says that nothing more fits: on the disk, in a quota, or into a file."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextmanager
def writing(what: str, path: Path | str) -> Iterator[None]:
    """Raises DiskFullError where the block finds the disk of `path` full; what: "the checkpoint", …"""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DiskFullError(
            f"no space is left for {what} ({path}: {error.strerror}); free space there, then start again: a "
            "trainer goes on from its last checkpoint"
        ) from None


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of `data` to an unbuffered file, which may take a part of it at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
