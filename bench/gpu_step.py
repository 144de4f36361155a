"""Training steps with more and more of them on a GPU; DeepFM P beside torch's EmbeddingBag.

    CPU                  features, tables and network on all cores of the host
    network on the GPU   features and tables on the host
    tables on the GPU    features on the host; a network over such tables is on the GPU, too
    all on the GPU       features as well

Extraction is part of a step, and one batch follows the other. With tables on the GPU the next batch's keys
are found while one is learned, as in a run. A run also extracts the next batch then (bench/gpu_train.py).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.gpu_timing import Rows, Target, once, traffic
from bench.gpu_work import NAME, WIDE, batch_of
from bench.peer import Peer
from bench.peers.workloads import P
from bench.planted import pipeline
from bench.rows import bounded, row
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.extract.extractor import Extract, Extractor
from livectr.models import DeepFM
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.step import DesStep
from livectr.trainer.tables.gpu_tables import GpuTables

BATCHES = (1 << 12, 1 << 15)
GOAL, WAITING = 10, 0.1
"""Least ratio of a step to the host's, and greatest part of a step in which the host waits."""
GPU_ROWS = 20_000_000
TURNS = 2
"""Batches that steps take in turn."""


@dataclass(frozen=True)
class Way:
    """Parts of a step that are on the GPU."""

    name: str
    network: bool = False
    tables: bool = False
    features: bool = False


WAYS = (
    Way("CPU"),
    Way("network on the GPU", network=True),
    Way("tables on the GPU", network=True, tables=True),
    Way("all on the GPU", network=True, tables=True, features=True),
)


def measure(target: Target, device: str, *, small: bool) -> Rows:
    """Rows of steps; `target` and `device` name the GPU to kernels and to PyTorch."""
    found: Rows = []
    for size in (100,) if small else BATCHES:
        found += ways(target, device, size, 1 if small else 10)
    return [*found, *beside_embedding_bag(target, device, 1 if small else 10)]


def ways(target: Target, device: str, size: int, repeats: int) -> Rows:
    """Steps of the 200 features, with nothing to all of them on the GPU."""
    found: Rows = []
    workload = f"{NAME}, DeepFM 256-128, K = 16, batch {size:,}, extraction included"
    of_cpu: float | None = None
    for way in WAYS:
        step = _step(way, target, device, size)
        for _ in range(TURNS):
            step()
        with traffic(target) as asked:
            taken = [once(step) for _ in range(repeats)]
        rate = size / statistics.median(taken)
        of_cpu = of_cpu or rate
        peer = None if way == WAYS[0] else "CPU: all cores of the host"
        found.append(
            row(f"training step, {way.name}", workload, "samples/s", rate, peer_name=peer,
                peer=None if peer is None else of_cpu, goal=GOAL if way.features else None)
        )  # fmt: skip
        if way.features:
            waited = asked.waited_s / sum(taken)
            found.append(bounded("host waits for the GPU", workload, "of a step", waited, goal=WAITING))
    return found


def _step(way: Way, target: Target, device: str, size: int) -> Callable[[], object]:
    """Extract and learn the next batch."""
    extract: Extract = Extractor(WIDE.plan, engine="fused")
    if way.features:
        extract = DeviceExtractor(WIDE.plan, target, rows=size, brought="nothing")
    des = DesStep(
        WIDE,
        seed=1,
        collectives=Collectives(device=device if way.network else "cpu"),
        tier=GpuTables(GPU_ROWS, target) if way.tables else None,
    )
    rng = np.random.default_rng(1)
    batches = [batch_of(WIDE, size, seed=turn) for turn in range(TURNS)]
    labels = [(rng.random(batch.num_rows) < 0.2).astype(np.float32) for batch in batches]
    turns = itertools.cycle(zip(batches, labels, strict=True))

    held: PreparedBatch | None = None

    def step() -> object:
        nonlocal held
        batch, label = next(turns)
        prepared = des.prepare(extract.resident(batch), label)
        if not way.tables:
            return des.learn(prepared)
        des.prefetch(prepared)
        ready, held = held, prepared
        return None if ready is None else des.learn(ready)

    return step


def beside_embedding_bag(target: Target, device: str, repeats: int) -> Rows:
    """DeepFM on workload P, tables and network on the device, beside plain torch on the same device."""
    model = DeepFM(dim=P.dim, hidden=P.hidden)
    built = pipeline(model, fields=P.fields, dense=P.dense)
    des = DesStep(built, seed=1, collectives=Collectives(device=device), tier=GpuTables(GPU_ROWS, target))
    peer = Peer(
        rows=sum(P.cardinality),
        fields=P.fields,
        dense=P.dense,
        dim=P.dim,
        hidden=P.hidden,
        world=1,
        device=device,
    )
    batches = P.batches(0, 1, 5)
    rates: list[list[float]] = [[], []]
    for _ in range(1 + repeats):  # the first turn warms up
        for found, step in zip(rates, (des.step, peer.step), strict=True):
            taken = once(lambda step=step: [step(batch.features, batch.label) for batch in batches])  # type: ignore[misc]
            found.append(P.batch * len(batches) / taken)
    ours, theirs = (statistics.median(found[1:]) for found in rates)
    return [
        row("DeepFM training", str(P), "samples/s", ours,
            peer_name="torch EmbeddingBag, hash-mod, sparse Adagrad, on the same device", peer=theirs, goal=1)
    ]  # fmt: skip
