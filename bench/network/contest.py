"""Rank of a contest in a network namespace: `OUT CONTEST WIRES [--quick]`.

P, W    DeepFM: ours with every field exchange, and TorchRec's DMP; in the peers' environment
mesh    LR, W&D, DeepFM on W: ours, and the mesh parameter server in step
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.network.compare import AUTO, BF16, DMP, GBITS, MESH, QUICK_GBITS
from bench.network.measure import Contestant, link_rates, measure
from bench.network.namespaces import Wires
from bench.peers.ours import OURS, Ahead, Ours, trainer_ahead
from bench.peers.workloads import Batch, P, W, Workload
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.step_settings import FIELD_EXCHANGES, StepSettings

STEPS = {"P": 5, "W": 1, "mesh": 1}
ROUNDS = 3


def exchanges(work: Workload, rank: int, world: int) -> dict[str, Contestant]:
    """DeepFM: ours with every exchange, and DMP with every sharding."""
    from bench.peers.tables import PeerStep, Sharding, sharded

    ways = {f"ours, {way}": Ours(settings=StepSettings(field_exchange=way)) for way in FIELD_EXCHANGES}
    found = {}
    for name, how in (ways | {AUTO: OURS["fp32"], BF16: OURS["bf16"]}).items():
        counted = how.collectives(rank, world)
        found[name] = Contestant(trainer_ahead(work, counted, how), counted)
    shardings: dict[str, Sharding] = {name: sharding for name, sharding in DMP.items()}
    for name, sharding in shardings.items():
        peer = PeerStep(work, partial(sharded, sharding=sharding), raw=False)
        found[name] = Contestant(peer.step)
    return found


def beside_the_mesh(model: str, rank: int, world: int) -> dict[str, Contestant]:
    """A model on W: ours, and the mesh in step."""
    from bench.mesh.contest import MODELS
    from bench.mesh.synchronous import Synchronous
    from bench.planted import pipeline
    from livectr.trainer.des.step import DesStep

    counted = Collectives(rank, world)
    des = DesStep(pipeline(MODELS[model], fields=W.fields), seed=1, collectives=counted)
    mesh = Synchronous(MODELS[model], [f"C{i + 1}" for i in range(W.fields)], [], seed=1)

    def on(trainer: Synchronous, batch: Batch) -> object:
        return trainer.step(batch.features, batch.label)

    return {AUTO: Contestant(Ahead(des), counted), MESH: Contestant(partial(on, mesh))}


@contextmanager
def ranks() -> Iterator[tuple[int, int]]:
    """(rank, world) of a process that torchrun started, with Gloo."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Writes panel → list of `Found`, and "link" → Gbit/s of TCP's payload by limit."""
    out, contest, wired = sys.argv[1:4]
    quick = "--quick" in sys.argv
    gbits = QUICK_GBITS if quick else GBITS
    wires = Wires.parse(wired)
    with ranks() as (rank, world):
        work = P if contest == "P" else W
        batches = work.batches(rank, world, 1 if quick else STEPS[contest])
        found: dict[str, Any] = {"link": link_rates(wires, gbits)}
        panels = {contest: partial(exchanges, work)}
        if contest == "mesh":
            from bench.mesh.contest import MODELS

            panels = {model: partial(beside_the_mesh, model) for model in MODELS}
        for panel, contestants in panels.items():
            measured = measure(wires, contestants(rank, world), batches, gbits, 1 if quick else ROUNDS)
            found[panel] = [asdict(one) for one in measured]
        if rank == 0:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
