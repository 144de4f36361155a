"""Rank of a contest of DeepFM trainers: `OUT WORKLOAD [--quick]`, in the peers' environment.

Both sides run in one process, on one torch with equal threads, and train on the same batches.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from bench.peer import Peer
from bench.peers.compare import MCH, MCH_INTERVAL
from bench.peers.ours import OURS, trainer, trainer_ahead
from bench.peers.tables import PeerStep, managed, sharded, tbe
from bench.peers.workloads import Batch, P, W, Workload
from bench.turns import in_turns

Contestant = Callable[[Batch], object]


def contestants(work: Workload, world: int) -> dict[str, Contestant]:
    """Contestants by name, without peers that make no sense on this number of ranks."""
    found: dict[str, Contestant] = {}
    ours = trainer_ahead if world > 1 else trainer
    for name, how in OURS.items():
        found[name] = ours(work, how.collectives(dist.get_rank(), world), how)
    if world > 1:
        found["TorchRec DMP table-wise"] = PeerStep(
            work, partial(sharded, sharding="table-wise"), raw=False
        ).step
    if world > 1 and work is P:
        found["TorchRec DMP row-wise"] = PeerStep(work, partial(sharded, sharding="row-wise"), raw=False).step
    if world == 1:
        for kind, rowwise in (("row-wise Adagrad", True), ("Adagrad", False)):
            found[f"FBGEMM TBE, fused {kind}"] = PeerStep(work, partial(tbe, rowwise=rowwise), raw=False).step
        found[MCH] = PeerStep(work, partial(managed, interval=MCH_INTERVAL), raw=True).step
        found["torch EmbeddingBag, hash-mod"] = plain(work)
    return found


def plain(work: Workload) -> Contestant:
    """Plain torch (`bench.peer`)."""
    peer = Peer(
        rows=sum(work.cardinality),
        fields=work.fields,
        dense=work.dense,
        dim=work.dim,
        hidden=work.hidden,
        world=1,
    )
    return lambda batch: peer.step(batch.features, batch.label)


def main() -> None:
    """Writes name → {samples/s, bytes a step of all ranks}."""
    out, name = sys.argv[1:3]
    quick = "--quick" in sys.argv
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    work = {"P": P, "W": W}[name]
    steps, rounds = (3, 2) if quick else (20, 5) if work is P else (4, 5)
    batches = work.batches(rank, world, steps)

    def run(step: Contestant) -> None:
        for batch in batches:
            step(batch)

    steppers = {name: partial(run, step) for name, step in contestants(work, world).items()}
    found = in_turns(steppers, rounds)
    if rank == 0:
        rates = {
            name: {"rate": work.batch * steps / m.seconds, "bytes": m.loopback / steps}
            for name, m in found.items()
        }
        Path(out).write_text(json.dumps(rates))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
