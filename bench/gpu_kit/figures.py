"""A part of the GPU's benchmarks, whose rows are noted: `rows N`, `step`, `images` or `train`."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from functools import partial

from bench.gpu_kit import mode
from bench.gpu_kit.events import note
from bench.gpu_kit.kernels import ask, watch
from bench.gpu_timing import Rows

WHOLE = {"step": "bench.gpu_step", "images": "bench.gpu_images", "train": "bench.gpu_train"}
"""Part → module whose `measure(target, device, small=…)` has its rows."""


def main() -> None:
    """Measure a part. The exit code is 1 if some of it could not be measured."""
    watch()
    failures: list[str] = []
    for group in _rows(int(sys.argv[2])) if sys.argv[1] == "rows" else [_whole(sys.argv[1])]:
        try:
            found = group()
        except Exception:  # the other groups are measured nevertheless
            failures.append(traceback.format_exc())
            continue
        for row in found:
            note("row", **row)
            print(f"{row['figure']}, {row['workload']}: {row['ours']} {row['unit']}", flush=True)
    sys.exit("\n".join(failures) or None)


def _rows(rows: int) -> list[Callable[[], Rows]]:
    from bench import gpu

    for source in gpu.SOURCES:
        ask(source)
    repeats = mode.size(20 if rows < 1 << 20 else 8, 2)
    return [partial(group, mode.target(), rows, repeats) for group in gpu.GROUPS]


def _whole(name: str) -> Callable[[], Rows]:
    measure = importlib.import_module(WHOLE[name]).measure
    return partial(measure, mode.target(), mode.torch_device(), small=mode.dry())


if __name__ == "__main__":
    main()
