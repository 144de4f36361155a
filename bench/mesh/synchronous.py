"""The mesh in step: pulls, pushes the network's gradients are collectives (DES §3.2.3, T_sync,mesh)."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from bench.mesh.shard import F32, I64, Network, Shard
from bench.mesh.worker import Request, largest_numbers, learn
from livectr.ingest.plan.features import Features
from livectr.kernels.network.small_batch import curvature
from livectr.models.base import ModelConfig


class Synchronous:
    """Rank of a synchronous mesh; alone without a process group. It learns the same as a single process."""

    def __init__(self, config: ModelConfig, fields: list[str], dense: list[str], *, seed: int) -> None:
        together = dist.is_initialized()
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        self.shard = Shard(config, len(fields) + len(dense), seed)
        self.network = Network(config.build(fields, fields, dense, True, seed), config)

    def step(self, features: Features, label: F32) -> F32:
        """One batch of own examples; returns their logits of before it was learned. Collective."""
        # 1 pull: unique keys to their servers, rows back
        request = Request.of(features, self.world)
        requested, rows = self._pull(request)
        # 2 compute the whole model
        if not self.network.adam.steps:
            clicks, samples = self._sum(torch.tensor([label.sum(), len(label)], dtype=torch.float64)).tolist()
            self.network.start(clicks, int(samples))
        grads, logits = learn(self.network.model, features, label, request, rows)
        # 3 push: the rows' gradients to their servers, the network's to everyone
        numbers = (np.diff(request.bounds) * rows.shape[1]).tolist()
        coming = [len(keys) * rows.shape[1] for keys in requested]
        back = self._all_to_all(torch.from_numpy(grads).ravel(), numbers, coming).view(-1, rows.shape[1])
        self.shard.push(np.concatenate(requested), back.numpy())
        own = torch.tensor([float(len(label)), curvature(logits)])
        whole = self._sum(torch.cat([self.network.gradient(), own]))
        largest = largest_numbers(features)
        if self.world > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        self.network.push(whole[:-2], int(whole[-2]), float(whole[-1]), largest)
        return logits

    def _pull(self, request: Request) -> tuple[list[I64], F32]:
        """(keys that other ranks request from this rank, rows that this rank requested)."""
        sizes = torch.from_numpy(np.diff(request.bounds))
        ones = [1] * self.world
        coming = self._all_to_all(sizes, ones, ones).tolist()
        keys = self._all_to_all(torch.from_numpy(request.keys), sizes.tolist(), coming)
        rows = torch.from_numpy(self.shard.pull(keys.numpy()))
        width = rows.shape[1]
        outgoing, incoming = [n * width for n in coming], [n * width for n in sizes.tolist()]
        back = self._all_to_all(rows.ravel(), outgoing, incoming).view(-1, width)
        return [part.numpy() for part in torch.split(keys, coming)], back.numpy()

    def _all_to_all(self, outgoing: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        if self.world == 1:
            return outgoing
        incoming = outgoing.new_empty(sum(received))
        dist.all_to_all_single(incoming, outgoing, received, sent)
        return incoming

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor
