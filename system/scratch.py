"""Temporary folders that outlive their process by little, even if it is killed.

A folder is removed at the end of its block or of its process. A killed process removes nothing, so each new
folder begins with a look for those whose owner is gone:

    $TMPDIR/livectr-KIND-RANDOM/.owner    is locked (flock) by the process that made it, and by its forks
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from livectr.system.file_locks import is_held

_PREFIX = "livectr-"
_OWNER = ".owner"
_locks: dict[Path, tuple[int, IO[bytes]]] = {}
"""Folder → the process that made it, and its lock: a fork removes none of its parent's."""


def scratch_folder(kind: str) -> Path:
    """Make a temporary folder that is removed at the end of this process; `remove_scratch` does so before.

    Args:
        kind: a word for its name.
    """
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-"))
    lock = (folder / f"{_OWNER}~").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / f"{_OWNER}~").rename(folder / _OWNER)  # locked before others see it: they take it for abandoned
    _locks[folder] = os.getpid(), lock
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove a folder of `scratch_folder`. Not in a fork of the process that made it."""
    pid, lock = _locks.get(folder, (0, None))
    if pid == os.getpid() and lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        del _locks[folder]
        lock.close()


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """Temporary folder of a block; see `scratch_folder`."""
    folder = scratch_folder(kind)
    try:
        yield folder
    finally:
        remove_scratch(folder)


def _remove_abandoned() -> None:
    """Remove this user's folders whose owner has ended without doing so."""
    for entry in os.scandir(tempfile.gettempdir()):
        if not entry.name.startswith(_PREFIX):
            continue
        try:
            own = entry.is_dir(follow_symlinks=False) and entry.stat().st_uid == os.getuid()
            owner = Path(entry.path, _OWNER)
            if own and owner.exists() and not is_held(owner):
                shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:  # its owner, or another process that looks, is faster
            continue


@atexit.register
def _remove_own() -> None:
    for folder in [*_locks]:
        remove_scratch(folder)
