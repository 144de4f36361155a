"""One rank of test_ranks.py, started by `bench.launch`: OUT CASE; rank 0 writes what it found to OUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from livectr.trainer.comm.collectives import Collectives, connect
from tests.gpu.here import DRY, TARGET, TORCH
from tests.trainer.collectives_checks import every_collective
from tests.trainer.des_worker import WAYS
from tests.trainer.gpu_tables_checks import ranks_train_alike


def ranks() -> dict[str, Any]:
    """Exchange tensors and train, as one of two ranks on the GPUs that are there."""
    with connect(device="cpu" if DRY else "gpu") as shared:
        every_collective(shared, str(shared.device))
        for way in ("allreduce", "partial", "mixed"):
            ranks_train_alike(shared, TARGET, WAYS[way])
        return {"backend": dist.get_backend(), "device": str(shared.device), "rank": shared.rank}


def alone() -> dict[str, Any]:
    """Exchange tensors in a group of one: what NCCL does with a single GPU."""
    backend = "gloo" if DRY else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        numbers = torch.arange(1000.0, device=TORCH)
        summed = numbers.clone()
        dist.all_reduce(summed)
        assert torch.equal(summed, numbers)
        for wire in ("fp32", "bf16"):
            one = Collectives(0, 1, TORCH, wire, nccl=not DRY)
            sent = one._send(numbers, [1000], [1000])
            dtype = torch.float32 if wire == "fp32" else torch.bfloat16
            assert torch.equal(sent, numbers.to(dtype).float()) and sent.device == numbers.device
        if not DRY:
            to_self(numbers)
    finally:
        dist.destroy_process_group()
    return {"rank": 0}


def to_self(numbers: torch.Tensor) -> None:
    """Send to the own rank and receive from it: NCCL allows it in one group of calls."""
    received = torch.empty_like(numbers)
    both = [dist.P2POp(dist.isend, numbers, 0), dist.P2POp(dist.irecv, received, 0)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    assert torch.equal(received, numbers)


def main() -> None:
    found = {"ranks": ranks, "alone": alone}[sys.argv[2]]()
    if found["rank"] == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
