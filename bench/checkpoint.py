"""Checkpoints of ten million rows: how long training waits for one, and how long a restart reads.

A table of rows with 16 numbers and AdaGrad gets changes in one row of a hundred before each checkpoint, for
as many checkpoints as it takes until all files of the first have been replaced.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.rows import bounded, row
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.comm.control import Control

LAYOUT = RowLayout((Segment("rank.v", 16, AdaGrad(), 0.1),))
FULL, QUICK = 10_000_000, 200_000
CHECKPOINTS = 80
PART = 1 << 18
STALL_GOAL_MS, RESTORE_GOAL_S = 50.0, 20.0
IDENTITY = {"bench": "checkpoint"}


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench checkpoint`."""
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder:
        return _rows(Path(folder), size, quick=quick)


def _rows(folder: Path, size: int, *, quick: bool) -> list[dict[str, object]]:
    rng = np.random.default_rng(1)
    table = _table()
    for start in range(0, size, PART):
        _learn(table, np.arange(start, min(start + PART, size)), rng)
    checkpoint = Checkpointer(folder, Control(), IDENTITY)
    first_s = _held_up(checkpoint, table)
    waited, existed = [], []
    for _ in range(8 if quick else CHECKPOINTS):
        _learn(table, rng.integers(0, size, size // 100), rng)
        began = time.perf_counter()
        waited.append(_held_up(checkpoint, table, finish=False))
        checkpoint.finish()
        existed.append(time.perf_counter() - began)
    checkpoint.close()
    again = Checkpointer(folder, Control(), IDENTITY)
    began = time.perf_counter()
    restored = again.restore()
    assert restored is not None
    new = _table()
    restored.load_tables({"items": new})
    restore_s = time.perf_counter() - began
    again.close()
    assert len(new) == len(table) == size
    workload = f"{size:,} rows of {4 * LAYOUT.stride} bytes, one of a hundred changed"
    stalls, whole = [1e3 * s for s in waited], [1e3 * s for s in existed]
    until: dict[str, Any] = dict(peer_name="until it exists", peer=statistics.median(whole), better="less")
    waits = "training waits for a checkpoint"
    stall, restore = (None, None) if quick else (STALL_GOAL_MS, RESTORE_GOAL_S)
    return [
        row(f"{waits}, median", workload, "ms", statistics.median(stalls), **until),
        bounded(f"{waits}, longest", f"{workload}; {len(stalls)} in a row", "ms", max(stalls), goal=stall),
        bounded(f"{waits}, the first of a process", workload, "ms", 1e3 * first_s, goal=None),
        bounded("restore", workload, "s", restore_s, goal=restore),
    ]  # fmt: skip


def _table() -> DynamicTable:
    return DynamicTable(LAYOUT, name="items", seed=1)


def _learn(table: DynamicTable, keys: np.ndarray, rng: np.random.Generator) -> None:
    table.update(keys, rng.standard_normal((len(keys), LAYOUT.dim), np.float32))


def _held_up(checkpoint: Checkpointer, table: DynamicTable, *, finish: bool = True) -> float:
    """Seconds until a checkpoint has begun."""
    began = time.perf_counter()
    checkpoint.begin(
        CheckpointState(
            step=1,
            examples=1,
            predictions=0,
            cursor=None,
            tables={"items": table},
            marks={"items": table.mark()},
            dense={},
            source={},
            statistics={},
            row=LAYOUT.describe(),
        )
    )
    waited = time.perf_counter() - began
    if finish:
        checkpoint.finish()
    return waited
