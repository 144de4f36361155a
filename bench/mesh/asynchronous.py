"""The mesh out of step: a rank waits for its own pulls, never for another's batch (DES §3.2.3, T_async,mesh).

Servers return rows in their current state, and apply gradients when they arrive: gradients of other ranks
that are in flight are not in the rows. A rank has at most one batch of gradients in flight. Rank 0 serves the
network's parameters.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.futures import Future

from bench.mesh.shard import F32, Network, Shard
from bench.mesh.worker import Request, largest_numbers, learn
from livectr.ingest.plan.features import Features
from livectr.kernels.network.small_batch import curvature
from livectr.models.base import ModelConfig

_numbers = itertools.count()
_served: dict[int, Asynchronous] = {}


class Asynchronous:
    """One of `world` ranks; all make theirs in the same order, after `rpc.init_rpc` with names "0", "1", …"""

    def __init__(
        self, config: ModelConfig, fields: list[str], dense: list[str], *, seed: int, world: int
    ) -> None:
        self.world = world
        self.shard = Shard(config, len(fields) + len(dense), seed)
        self.network = Network(config.build(fields, fields, dense, True, seed), config)
        self.worker = Network(config.build(fields, fields, dense, True, seed), config)
        self.number = next(_numbers)
        _served[self.number] = self
        self._pushed: list[Future[Tensor]] = []

    def start(self, clicks: float, samples: int) -> None:
        """Moves the network's bias to this CTR, on every rank before the first step."""
        self.network.start(clicks, samples)

    def step(self, features: Features, label: F32) -> F32:
        """One batch of own examples; returns their logits of before it was learned."""
        # 1 pull
        request = Request.of(features, self.world)
        parts = [torch.from_numpy(request.keys[request.of_rank(r)]) for r in range(self.world)]
        network = self._call(0, _pull_network)
        coming = [self._call(r, _pull, keys) for r, keys in enumerate(parts)]
        self.worker.put(network.wait())
        rows = torch.cat([part.wait() for part in coming])
        # 2 compute the whole model
        grads, logits = learn(self.worker.model, features, label, request, rows.numpy())
        # 3 push, and continue
        self.wait()
        split = torch.split(torch.from_numpy(grads), np.diff(request.bounds).tolist())
        self._pushed = [self._call(r, _push, parts[r], grad) for r, grad in enumerate(split)]
        pushed = self.worker.gradient(), len(label), curvature(logits), largest_numbers(features)
        self._pushed.append(self._call(0, _push_network, *pushed))
        return logits

    def wait(self) -> None:
        """Until the own gradients have arrived."""
        torch.futures.wait_all(self._pushed)
        self._pushed = []

    def _call(self, rank: int, function: object, *arguments: object) -> Future[Tensor]:
        return rpc.rpc_async(str(rank), function, (self.number, *arguments))  # type: ignore[no-any-return]


def _pull(number: int, keys: Tensor) -> Tensor:
    return torch.from_numpy(_served[number].shard.pull(keys.numpy()))


def _push(number: int, keys: Tensor, grads: Tensor) -> None:
    _served[number].shard.push(keys.numpy(), grads.contiguous().numpy())


def _pull_network(number: int) -> Tensor:
    return _served[number].network.pull()


def _push_network(number: int, gradient: Tensor, samples: int, curved: float, largest: Tensor) -> None:
    _served[number].network.push(gradient, samples, curved, largest)
