"""One rank of test_cut.py: cuts logs that arrive at random, and notes the batches: OUT/rank<r>.json.

Run by `run_ranks`.
"""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch.distributed as dist

from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.control import Control
from livectr.trainer.ramp import BatchRamp
from livectr.trainer.stream.batcher import Batcher, Times
from livectr.trainer.stream.cut import NEVER
from livectr.trainer.stream.header import Flags
from tests.trainer.scripted_source import Batch, Log, ScriptedSource
from tests.waiting import left_s

PARTITIONS = 8


class Case(NamedTuple):
    """A log, and how it is cut.

    Attributes:
        rows: of each partition.
        orders: number of different orders.
    """

    rows: list[int]
    orders: int = 5_000
    batch_size: int = 300
    interval_ms: int | None = None
    finals: bool = False
    longest_s: float | None = None

    @property
    def log(self) -> Log:
        rng = random.Random(self.orders)
        return {p: sorted(rng.choices(range(self.orders), k=n)) for p, n in enumerate(self.rows)}


EVEN, SKEWED, NONE = [250] * PARTITIONS, [20, 2_000, 20, 20, 0, 30, 1, 40], [0] * PARTITIONS
CASES = {
    "even": Case(EVEN),
    "skewed": Case(SKEWED),
    "ties": Case(EVEN, orders=9),
    "small": Case(SKEWED, batch_size=48),
    "finals": Case(EVEN, finals=True),
    "skewed-finals": Case(SKEWED, orders=300, finals=True),
    "small-finals": Case(EVEN, batch_size=32, finals=True),
    "ticks": Case(EVEN, interval_ms=350),
    "skewed-ticks-finals": Case(SKEWED, interval_ms=1_000, finals=True),
    "overdue": Case(SKEWED, longest_s=0.0),
    "overdue-ticks-finals": Case(EVEN, interval_ms=350, finals=True, longest_s=0.0),
    "nothing": Case(NONE),
}


class Noting(Control):
    """Control that notes the rows of its ragged all-gathers."""

    rows: list[int]

    def gather_ragged(self, values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
        self.rows.append(int(counts.sum()))
        return super().gather_ragged(values, counts)


def cut_all(case: Case, control: Noting) -> dict[str, Any]:
    """Cut a case's log: this rank's rows of each batch, and the batches' sequences."""
    own = {p: rows for p, rows in case.log.items() if p % control.world == control.rank}
    source = ScriptedSource(own, seed=control.rank, most=60)
    times = Times(case.interval_ms, case.longest_s, poll_s=0)
    batcher = Batcher(source, control, ramp=BatchRamp(case.batch_size), finals=case.finals, times=times)
    control.rows = []
    batches: list[tuple[Batch, list[int]]] = []
    while not (round_ := batcher.round(Flags())).ended:
        if (cut := round_.cut) is not None:
            batches.append((source.pop(int(cut.counts[control.rank])), cut.sequence.tolist()))
    return {"batches": batches, "rows": control.rows}


def gather_from_one(control: Control) -> None:
    """Gather rows of which one rank has most: each is sent twice, not N times."""
    counts = np.array([3, 5_000, *[0] * (control.world - 2)])
    values = np.arange(2 * counts[control.rank]).reshape(-1, 2) - NEVER
    with patch.object(dist, "all_gather", side_effect=AssertionError("all-gather")):
        found = Control.gather_ragged(control, values, counts)
    for part, n in zip(found, counts.tolist(), strict=True):
        assert (part == np.arange(2 * n).reshape(-1, 2) - NEVER).all()


def main(folder: str) -> None:
    """Cut every case."""
    with connect(timeout_s=left_s()) as collectives:
        control = Noting(collectives.rank, collectives.world)
        found = {name: cut_all(case, control) for name, case in CASES.items()}
        if control.world > 2:
            gather_from_one(control)
        Path(folder, f"rank{control.rank}.json").write_text(json.dumps(found))
