"""Locks on files (flock): one process holds a folder, and others look whether it is held."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

LOOK_S = 1.0
"""Patience of `take`: who looks holds the lock for a moment, too."""


def take(file: IO[bytes]) -> bool:
    """Lock a file until it is closed. False: another process holds it."""
    end = time.monotonic() + LOOK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)


def is_held(path: Path) -> bool:
    """Tell if a process holds the lock of a file; not if there is no such file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
