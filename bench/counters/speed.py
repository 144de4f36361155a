"""Updates a second of one core, and bytes of a key.

The windows are 10 minutes, an hour, a day and a week; labels are known after 10 minutes.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.rows import bounded
from livectr.ingest.language.counts import Counted
from livectr.kernels.stream.counters import CounterTable

WINDOWS = Counted(("ad",), (600_000, 3_600_000, 86_400_000, 604_800_000), lag_ms=600_000, max_bytes=1 << 62)
KEYS, UPDATES, BATCH = 10_000_000, 2_000_000, 65_536
LEAST_UPDATES, MOST_BYTES = 500_000, 150
"""Goals: updates a second of a core, and bytes of a key."""
EVENT_MS = 2


def rows(quick: bool) -> list[dict[str, object]]:
    """Rows of the table's cost."""
    keys, updates = (KEYS // 100, UPDATES // 20) if quick else (KEYS, UPDATES)
    rng, before = np.random.default_rng(0), _resident()
    table = CounterTable(WINDOWS.grain_ms, WINDOWS.fine, WINDOWS.spans[1:])
    clock = _Clock(table)
    workload = f"{keys:,} keys, 4 windows"
    found = [_speed("new keys a second", workload, clock.seconds(rng.permutation(keys), rng), keys, None)]
    drawn = {
        "at random": rng.integers(0, keys, updates),
        "by Zipf's law (1.2)": rng.zipf(1.2, updates) % keys,
    }
    for how, chosen in drawn.items():
        of = f"{workload}, {how}"
        found.append(_speed("updates a second", of, clock.seconds(chosen, rng), updates, LEAST_UPDATES))
        spent = clock.seconds(chosen, rng, wanted=True)
        found.append(_speed("updates a second, each with the key's row", of, spent, updates, None))
    size = (_resident() - before) / keys
    found.append(bounded("memory of a key", workload, "bytes", size, goal=None if quick else MOST_BYTES))
    return found


class _Clock:
    """Counts events at a steady rate and takes the CPU's time."""

    def __init__(self, table: CounterTable) -> None:
        self._table, self._now_ms = table, 1_700_000_000_000

    def seconds(
        self, keys: npt.NDArray[np.int64], rng: np.random.Generator, *, wanted: bool = False
    ) -> float:
        """CPU seconds of an impression of each key; one in ten has a click."""
        spent = 0.0
        for start in range(0, len(keys), BATCH):
            batch = np.ascontiguousarray(keys[start : start + BATCH], np.int64)
            shown = np.ones(len(batch), np.uint8)
            clicked = (rng.random(len(batch)) < 0.1).astype(np.uint8)
            times = self._now_ms + EVENT_MS * np.arange(len(batch))
            self._now_ms = int(times[-1])
            began = time.process_time()
            self._table.push(batch, times, shown, clicked, shown if wanted else np.zeros_like(shown))
            spent += time.process_time() - began
        return spent


def _speed(figure: str, workload: str, seconds: float, events: int, goal: float | None) -> dict[str, object]:
    return bounded(figure, workload, "events/s", events / seconds, goal=goal, better="more")


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
