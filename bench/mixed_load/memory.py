"""Resident memory of a process and its descendants, sampled in a thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self

from livectr.local.parts import descendants

PAGE_BYTES = 4096
EVERY_S = 1.0


class MemoryLog:
    """Samples of the bytes that a process and its descendants have to themselves.

    Pages that forked processes share count once a process: their sum may be more than the machine gave, but
    grows as they grow.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def mean(self, first: float, last: float) -> float:
        """Mean bytes between two shares of the time so far."""
        end = self._samples[-1][0]
        part = [size for at, size in self._samples if first * end <= at <= last * end]
        return sum(part) / len(part)

    def _sample(self) -> None:
        while not self._stop.wait(EVERY_S):
            size = sum(map(_resident, [self._pid, *descendants(self._pid)]))
            self._samples.append((time.monotonic() - self._started, size))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0
