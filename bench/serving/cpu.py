"""CPU seconds of processes and of those that they have started, user and system, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from livectr.local.parts import descendants

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of processes so far, all threads; without processes that have ended."""
    return sum(_of(pid) for root in pids for pid in (root, *descendants(root)))


def _of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it ended meanwhile
    return _TICK_S * (int(fields[11]) + int(fields[12]))
