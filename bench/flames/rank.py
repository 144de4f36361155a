"""Rank that works until it is ended: `PIDFILE NAME`. Rank 0 writes its process id once it is warm."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

from bench.flames.works import WORKS
from bench.images.step_time import MEASURED, Size, held, step_of
from bench.images.store import random_store
from bench.peers.ours import OURS, trainer, trainer_ahead
from bench.peers.workloads import P, W, Workload
from bench.publish import filled, publish_all, publisher_of
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.system.heap import tune_malloc
from livectr.trainer.comm.collectives import Collectives, connect
from livectr.trainer.comm.control import Control

WARM = 10
"""Units of work before the samples."""


def work_of(name: str, shared: Collectives, stack: ExitStack) -> Iterator[Callable[[], object]]:
    """Units of work without end. Collective."""
    if name == "publish":
        return _published(stack)
    if name == "images":
        return _images(shared, stack)
    return _steps(W if name == "lists" else P, shared)


def _steps(work: Workload, shared: Collectives) -> Iterator[Callable[[], object]]:
    how = OURS["fp32"]
    own = how.collectives(shared.rank, shared.world)
    step = (trainer_ahead if shared.world > 1 else trainer)(work, own, how)
    batches = work.batches(shared.rank, shared.world, 5)
    while True:
        for batch in batches:
            yield lambda batch=batch: step(batch)  # type: ignore[misc]


def _images(shared: Collectives, stack: ExitStack) -> Iterator[Callable[[], object]]:
    size = Size()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-bench-")))
    random_store(folder, size.log.images, size.width)
    des = step_of(size.log, size.width, True, shared, held(folder, shared), MEASURED)
    batches = size.log.batches(shared.rank, shared.world, size.steps)
    while True:
        for batch in batches:
            yield lambda batch=batch: des.step(batch.features, batch.label)  # type: ignore[misc]


def _published(stack: ExitStack) -> Iterator[Callable[[], object]]:
    url = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}")).url
    table, publisher = filled(200_000), publisher_of(Control(), url)
    while True:
        publisher.begin_again()
        yield lambda: publish_all(publisher, table)


def main() -> None:
    pid_file, name = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tune_malloc()
    with connect() as shared, ExitStack() as stack:
        if shared.world != WORKS[name].world:
            sys.exit(f"{name} has {WORKS[name].world} ranks, not {shared.world}")
        for done, unit in enumerate(work_of(name, shared, stack)):
            if done == WARM and shared.rank == 0:
                pid_file.write_text(str(os.getpid()))
            unit()


if __name__ == "__main__":
    main()
