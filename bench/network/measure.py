"""Steps of all contestants at every bandwidth, in turns: A B at 0.5 Gbit/s, A B at 1, …, then all again."""

from __future__ import annotations

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from bench.network.namespaces import Wires, received_and_sent
from bench.peers.workloads import Batch
from livectr.trainer.comm.collectives import Collectives

LINK_S = 0.3
"""Time that the check of a link's rate takes."""


@dataclass(frozen=True)
class Contestant:
    """A rank's trainer.

    Attributes:
        step: learns a batch of the rank's own examples
        counted: its collectives, if it is ours
    """

    step: Callable[[Batch], object]
    counted: Collectives | None = None


@dataclass(frozen=True)
class Found:
    """Measures of a contestant at a bandwidth; medians of rounds.

    Attributes:
        contestant: name
        gbit: bandwidth of every wire in Gbit/s; None: no limit
        seconds: of a step
        busiest: bytes of a step on the wire and in the direction with most of them
        total: bytes of a step that all ranks send
        collectives: of our contestants, collective → bytes and seconds of a step on rank 0, means
    """

    contestant: str
    gbit: float | None
    seconds: float
    busiest: float
    total: float
    collectives: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class _Rounds:
    seconds: list[float] = field(default_factory=list)
    busiest: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    collectives: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))


def measure(
    wires: Wires,
    contestants: Mapping[str, Contestant],
    batches: Sequence[Batch],
    gbits: Sequence[float | None],
    rounds: int,
) -> list[Found]:
    """Every contestant on all batches, at every bandwidth, once a round; a first round without a limit does
    not count. Collective; medians of rank 0's clock."""
    found: dict[tuple[str, float | None], _Rounds] = defaultdict(_Rounds)
    for contestant in contestants.values():
        _run(contestant, batches)
    for _ in range(rounds):
        for gbit in gbits:
            _limit(wires, gbit)
            for name, contestant in contestants.items():
                _turn(found[name, gbit], contestant, batches)
    _limit(wires, None)
    steps = len(batches)
    return [
        Found(
            name,
            gbit,
            statistics.median(one.seconds) / steps,
            statistics.median(one.busiest) / steps,
            statistics.median(one.total) / steps,
            {k: (v[0] / (rounds * steps), v[1] / (rounds * steps)) for k, v in one.collectives.items()},
        )
        for (name, gbit), one in found.items()
    ]


def _turn(found: _Rounds, contestant: Contestant, batches: Sequence[Batch]) -> None:
    counted = contestant.counted
    sent = dict(counted.bytes) if counted else {}
    waited = dict(counted.seconds) if counted else {}
    gc.collect()
    barrier()
    before, start = received_and_sent(), time.perf_counter()
    _run(contestant, batches)
    barrier()
    found.seconds.append(time.perf_counter() - start)
    own = torch.tensor([b - a for a, b in zip(before, received_and_sent(), strict=True)], dtype=torch.float64)
    busiest, total = own.max().clone(), own[1].clone()
    dist.all_reduce(busiest, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    found.busiest.append(float(busiest))
    found.total.append(float(total))
    if counted:
        for name, nbytes in counted.bytes.items():
            found.collectives[name][0] += nbytes - sent.get(name, 0)
        for name, seconds in counted.seconds.items():
            found.collectives[name][1] += seconds - waited.get(name, 0.0)


def _run(contestant: Contestant, batches: Sequence[Batch]) -> None:
    for batch in batches:
        contestant.step(batch)


def link_rates(wires: Wires, gbits: Sequence[float | None]) -> dict[str, float]:
    """Gbit/s of TCP's payload from rank 0 to rank 1 at every limit, with Gloo. Collective."""
    rank, found = dist.get_rank(), {}
    for gbit in gbits:
        _limit(wires, gbit)
        numbers = torch.zeros(int((gbit or 5.0) * 1e9 / 8 * LINK_S) // 4)
        for _ in range(2):  # the first is TCP's warm-up
            barrier()
            start = time.perf_counter()
            if rank == 0:
                dist.send(numbers, 1)
            if rank == 1:
                dist.recv(numbers, 0)
            barrier()
            found[str(gbit)] = 8e-9 * numbers.nbytes / (time.perf_counter() - start)
    _limit(wires, None)
    return found


def _limit(wires: Wires, gbit: float | None) -> None:
    """Set every wire's limit, between steps. Collective."""
    barrier()
    if dist.get_rank() == 0:
        wires.limit(gbit)
    barrier()


def barrier() -> None:
    """Wait for all ranks."""
    dist.all_reduce(torch.zeros(1))
