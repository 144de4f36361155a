"""Cost of a sample with images on 1, 2 and 4 ranks; by a model, the paper's 5 to 40 GPUs (DICM Table 1).

Ranks have 1 thread each. With more ranks than cores the wall clock says nothing, so the processor time of
all ranks for a sample is compared. Waiting ranks sleep.

    batch of N ranks     b examples a rank, as the paper's 3,000 (§7.3)
    seconds of a batch   t(N) = c + 8 · sent(N) / bandwidth
    of a training        samples / (N b) · t(N): linear when sent(N) does not grow

c: computing time of a rank, as measured. sent(N): bytes that a rank sends for a batch: (N − 1)/N of a
constant in an all-to-all, 2 (N − 1)/N P in a ring all-reduce of P bytes. Both have a bound; the constants are
measured on two ranks. All-gathers (labels, scores, sizes) grow with N.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from bench.images.step_time import held, step_of
from bench.images.store import random_store
from bench.images.table_2 import PAPER
from bench.images.workload import Ads
from bench.launch import answer, launch
from bench.rows import row
from livectr.system.heap import tune_malloc
from livectr.trainer.comm.collectives import Collectives

WORLDS = (1, 2, 4)
ALL_GATHERED = ("labels", "scores", "sizes", "content sizes", "check")
"""Collectives in which a rank sends the same bytes to all others."""
TABLE_1 = {5: 62.9, 10: 32.0, 20: 17.4, 40: 10.2}
"""DICM Table 1: GPUs → hours."""
BANDWIDTH = 10e9
"""Bits a second that a node sends: 10 Gbit Ethernet, an assumption."""


@dataclass(frozen=True)
class Size:
    """log: with the examples of one rank as its batch."""

    log: Ads = replace(PAPER, batch=1500)
    width: int = 4096
    steps: int = 4


QUICK = Size(
    replace(PAPER, batch=64, images=500, ads=200, user=(50, 8), own=(200, 20), clicked=(500,)), 64, 1
)


@dataclass(frozen=True)
class Found:
    """Measures on a number of ranks: processor seconds of all ranks for a batch, seconds of a batch, and
    bytes that a rank sends for it, by collective."""

    world: int
    cpu: float
    wall: float
    sent: dict[str, float]


def rows(quick: bool) -> list[dict[str, object]]:
    """Measured on 1, 2 and 4 ranks, then the model."""
    size = QUICK if quick else Size()
    with tempfile.TemporaryDirectory(prefix="livectr-bench-") as folder:
        random_store(Path(folder), size.log.images, size.width)
        found = [
            Found(**launch("bench.images.scaling", folder, *["--quick"] * quick, world=world, threads=1))
            for world in WORLDS
        ]
    return [*measured_rows(size, found), *model_rows(size, found)]


def measured_rows(size: Size, found: list[Found]) -> list[dict[str, object]]:
    """Processor time of a sample, beside that on one rank; bytes of a sample."""
    made = []
    alone = found[0].cpu / size.log.batch
    for one in found:
        samples = one.world * size.log.batch
        workload = f"{size.log.batch:,} examples a rank, {one.world} rank" + "s" * (one.world > 1)
        made.append(
            row("processor time of a sample", workload, "µs", 1e6 * one.cpu / samples, peer_name="one rank",
                peer=1e6 * alone, better="less")
        )  # fmt: skip
        if one.world > 1:
            made.append(
                row("sent for a sample", workload, "bytes", one.world * sum(one.sent.values()) / samples)
            )
    return made


def model_rows(size: Size, found: list[Found]) -> list[dict[str, object]]:
    """Hours of 5, 10, 20 and 40 ranks relative to 5 ranks, beside the paper's."""
    alone, two = found[0], found[1]
    base, papers = training(alone, two, 5), TABLE_1[5]
    workload = f"model: {size.log.batch:,} examples a rank, {alone.cpu * 1e3:.0f} ms of computing, 10 Gbit/s"
    return [
        row(f"speed-up from 5 to {ranks} ranks", workload, "×", base / training(alone, two, ranks),
            peer_name="DICM Table 1", peer=papers / hours)
        for ranks, hours in TABLE_1.items() if ranks > 5
    ] + [
        row(f"share of communication in a step on {ranks} ranks", workload, "%",
            100 * (1 - alone.cpu / step_seconds(alone, two, ranks)))
        for ranks in (5, 40)
    ]  # fmt: skip


def training(alone: Found, two: Found, ranks: int) -> float:
    """Seconds of a training with one example a rank and batch, up to a factor."""
    return step_seconds(alone, two, ranks) / ranks


def step_seconds(alone: Found, two: Found, ranks: int) -> float:
    """t(N) of the module's docstring."""
    return alone.cpu + 8 * sent_by(two, ranks) / BANDWIDTH


def sent_by(two: Found, ranks: int) -> float:
    """Bytes that a rank of `ranks` sends for a batch, from the bytes of a rank of two."""
    gathered = sum(sent for name, sent in two.sent.items() if name in ALL_GATHERED)
    exchanged = sum(two.sent.values()) - gathered
    return gathered * (ranks - 1) + 2 * exchanged * (ranks - 1) / ranks


# ── one rank ──


def measure(size: Size, shared: Collectives, folder: Path) -> Found:
    """Steps of all ranks together. Collective."""
    whole = replace(size.log, batch=size.log.batch * shared.world)
    des = step_of(whole, size.width, True, shared, held(folder, shared))
    batches = whole.batches(shared.rank, shared.world, size.steps)
    des.step(batches[0].features, batches[0].label)
    before = dict(des.collectives.bytes)
    start, spent = time.perf_counter(), _processor_seconds()
    for batch in batches:
        des.step(batch.features, batch.label)
    gathered = np.array([_processor_seconds() - spent, time.perf_counter() - start]) / size.steps
    every = np.asarray(shared.all_gather(gathered, "bench"))
    sent = {name: (total - before.get(name, 0)) / size.steps for name, total in des.collectives.bytes.items()}
    return Found(shared.world, float(every[:, 0].sum()), float(every[:, 1].max()), sent)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """One rank: `OUT FOLDER [--quick]`."""
    torch.set_num_threads(1)
    tune_malloc()
    size = QUICK if "--quick" in sys.argv else Size()
    answer(lambda shared: measure(size, shared, Path(sys.argv[2])))


if __name__ == "__main__":
    main()
