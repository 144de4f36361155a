"""Memory of a process, by /proc."""

from contextlib import suppress
from pathlib import Path


def memory_mib(pid: int, line: str) -> float:
    """MiB of a process in /proc/PID/status; 0 when it has ended."""
    with suppress(OSError):
        for found in Path(f"/proc/{pid}/status").read_text().splitlines():
            if found.startswith(line):
                return int(found.split()[1]) / 1024
    return 0.0
