"""One-pass AUC of DeepFM on TorchRec's table and of ours, in the peers' environment: `OUT SEEDS BATCHES`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from bench.one_pass import DENSE_RATE, F32, log, one_pass
from bench.peers.ours import OURS, trainer
from bench.peers.tables import PeerStep, sharded
from bench.peers.workloads import Batch
from livectr.trainer.des.result import StepResult


def _ours(step: Callable[[Batch], StepResult], batch: Batch) -> F32:
    return step(batch).logits["rank"]


def _peers(peer: PeerStep, batch: Batch) -> F32:
    logits: F32 = peer.step(batch).numpy()
    return logits


def main() -> None:
    """Writes contestant → AUC of each seed."""
    out, seeds, count = sys.argv[1:4]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    found: dict[str, list[float]] = {name: [] for name in (*OURS, "TorchRec")}
    for seed in range(int(seeds)):
        work, batches = log(seed, int(count))
        for name, how in OURS.items():
            step = trainer(work, how.collectives(), how, dense_rate=DENSE_RATE)
            found[name].append(one_pass(partial(_ours, step), batches))
        peer = PeerStep(work, partial(sharded, sharding="table-wise"), raw=False, first_order=True)
        found["TorchRec"].append(one_pass(partial(_peers, peer), batches))
    Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
