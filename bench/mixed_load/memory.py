"""Resident memory of processes and their descendants, sampled in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from livectr.local.parts import descendants

PAGE_BYTES = 4096
EVERY_S = 1.0


class MemoryLog:
    """Samples of the resident bytes of processes and their descendants.

    Pages that forked processes share count once a process: their sum may be more than the machine gave, but
    grows as they grow.
    """

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
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
            size = sum(_resident(each) for pid in self._pids() for each in (pid, *descendants(pid)))
            self._samples.append((time.monotonic() - self._started, size))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0
