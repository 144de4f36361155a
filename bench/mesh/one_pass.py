"""One-pass AUC of the asynchronous mesh: `OUT SEEDS BATCHES`, on each rank.

Batch i of the log is rank (i mod N)'s.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from bench.mesh.asynchronous import Asynchronous
from bench.mesh.contest import ranks
from bench.one_pass import F32, MODELS, late_auc, log
from bench.peers.workloads import Batch
from livectr.models import ModelConfig


def stale_logits(config: ModelConfig, batches: list[Batch], rank: int, world: int, *, seed: int) -> list[F32]:
    """Logits of every batch before its rank has learned it, on every rank. Collective."""
    fields, dense = batches[0].features.fields, batches[0].features.dense.shape[1]
    mesh = Asynchronous(
        config,
        [f"C{i + 1}" for i in range(fields)],
        [f"I{i + 1}" for i in range(dense)],
        seed=seed,
        world=world,
    )
    mesh.start(float(batches[0].label.sum()), len(batches[0].label))
    dist.barrier()  # before this, a rank may have nothing to serve with
    found = torch.zeros(len(batches), len(batches[0].label))
    for i in range(rank, len(batches), world):
        found[i] = torch.from_numpy(mesh.step(batches[i].features, batches[i].label))
    mesh.wait()
    dist.all_reduce(found)
    logits: list[F32] = list(found.numpy().astype(np.float32))
    return logits


def main() -> None:
    """Writes model → AUC of each seed."""
    out, seeds, count = sys.argv[1:4]
    with ranks() as (rank, world):
        found: dict[str, list[float]] = {model: [] for model in MODELS}
        for seed in range(int(seeds)):
            _, batches = log(seed, int(count))
            for name, config in MODELS.items():
                logits = stale_logits(config, batches, rank, world, seed=seed)
                found[name].append(late_auc(logits, batches))
        if rank == 0:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
