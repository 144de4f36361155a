"""One rank of a contest on workload W: `OUT [--quick]`. Ours, and the mesh in step and out of step."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

from bench.mesh.asynchronous import Asynchronous
from bench.mesh.synchronous import Synchronous
from bench.peers.ours import Ahead
from bench.peers.workloads import Batch, W
from bench.planted import pipeline
from bench.turns import in_turns
from livectr.models import LR, DeepFM, ModelConfig, WideDeep
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.step import DesStep

MODELS: dict[str, ModelConfig] = {
    "LR": LR(),
    "W&D": WideDeep(dim=W.dim, hidden=W.hidden),
    "DeepFM": DeepFM(dim=W.dim, hidden=W.hidden),
}
SYNCHRONOUS, ASYNCHRONOUS = "mesh, synchronous", "mesh, asynchronous"


@contextmanager
def ranks() -> Iterator[tuple[int, int]]:
    """(rank, world) of a process that torchrun started, with Gloo and RPC at hand."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    # Over TCP, as between machines. TensorPipe's default on one machine is shared memory, whose threads poll
    # without a pause: on few cores they take the time of all contestants.
    tcp: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=600, **tcp)
    rpc.init_rpc(str(rank), rank=rank, world_size=world, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    try:
        yield rank, world
    finally:
        rpc.shutdown()
        dist.destroy_process_group()


def contestants(rank: int, world: int) -> dict[str, Callable[[Sequence[Batch]], None]]:
    """ "<model>/<contestant>" → trains on batches. Asynchronous ranks are served until the next barrier."""
    fields = [f"C{i + 1}" for i in range(W.fields)]
    found: dict[str, Callable[[Sequence[Batch]], None]] = {}
    for name, config in MODELS.items():
        des = DesStep(
            pipeline(config, fields=W.fields),
            seed=1,
            collectives=Collectives(rank, world),
        )
        synchronous = Synchronous(config, fields, [], seed=1)
        asynchronous = Asynchronous(config, fields, [], seed=1, world=world)
        found[f"{name}/ours"] = partial(_run_ahead, Ahead(des))
        found[f"{name}/{SYNCHRONOUS}"] = partial(_run, synchronous)
        found[f"{name}/{ASYNCHRONOUS}"] = partial(_run, asynchronous)
    return found


def _run_ahead(ahead: Ahead, batches: Sequence[Batch]) -> None:
    for batch in batches:
        ahead(batch)


def _run(trainer: Synchronous | Asynchronous, batches: Sequence[Batch]) -> None:
    for batch in batches:
        trainer.step(batch.features, batch.label)
    if isinstance(trainer, Asynchronous):
        trainer.wait()


def main() -> None:
    """Writes "<model>/<contestant>" → {samples/s, bytes a step of all ranks}."""
    steps, rounds = (1, 1) if "--quick" in sys.argv else (3, 5)
    with ranks() as (rank, world):
        batches = W.batches(rank, world, steps)
        steppers = {name: partial(run, batches) for name, run in contestants(rank, world).items()}
        found = in_turns(steppers, rounds, warm_up=1)
        if rank == 0:
            rates = {
                name: {"rate": W.batch * steps / one.seconds, "bytes": one.loopback / steps}
                for name, one in found.items()
            }
            Path(sys.argv[1]).write_text(json.dumps(rates))


if __name__ == "__main__":
    main()
