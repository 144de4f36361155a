"""What crosses ranks, and how many bytes of it: every collective of the trainer goes through `Collectives`.

⊕ is DES Algorithm 1's aggregation. Its backward is the identity: every rank computes the same loss over the
same B samples, so the gradient that a rank holds is already the whole one (DES §3.2.2).

Bytes are those that this rank hands to others: a ring all-reduce of S bytes sends 2 (N − 1) / N · S, an
all-gather (N − 1) times the own share, an all-to-all what is addressed to others. With one rank nothing is
sent and no process group is needed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from kernels.errors import InternalError
from trainer import telemetry

Words = NDArray[np.int64]


class Collectives:
    """The collectives of one rank.

    Attributes:
        bytes: operator name → bytes sent by this rank so far
        device: where this rank's networks run
    """

    def __init__(self, rank: int = 0, world: int = 1, device: str = "cpu") -> None:
        self.rank = rank
        self.world = world
        self.device = torch.device(device)
        self.bytes: dict[str, int] = defaultdict(int)

    def count(self, operator: str, sent: int) -> None:
        """Adds to an operator's bytes, here and in the metrics."""
        self.bytes[operator] += sent
        telemetry.COLLECTIVE_BYTES.labels(operator).inc(sent)

    def aggregate(self, partial: Tensor, operator: str) -> Tensor:
        """⊕ with autograd: f32[B, S] → the sum over ranks, the same bits on every rank."""
        if self.world == 1:
            return partial
        total: Tensor = _Aggregate.apply(partial, lambda x: self.all_reduce(x, operator))  # type: ignore[no-untyped-call]
        return total

    def all_reduce(self, tensor: Tensor, operator: str) -> Tensor:
        """Sums `tensor` over ranks in place and returns it."""
        if self.world > 1:
            dist.all_reduce(tensor)
            self.count(operator, 2 * (self.world - 1) * tensor.nbytes // self.world)
        return tensor

    def all_gather(self, own: NDArray[np.generic], operator: str) -> NDArray[np.generic]:
        """Array of one shape and dtype on every rank → [N, *shape], in the order of the ranks."""
        if self.world == 1:
            return own[None]
        mine = torch.from_numpy(np.ascontiguousarray(own).view(np.uint8).reshape(-1))
        gathered = torch.empty(self.world, mine.numel(), dtype=torch.uint8)
        dist.all_gather(list(gathered), mine)
        self.count(operator, (self.world - 1) * mine.nbytes)
        return gathered.numpy().view(own.dtype).reshape(self.world, *own.shape)

    def all_to_all(
        self, outgoing: Sequence[Words], incoming: Sequence[int], sent: Mapping[str, int]
    ) -> list[Words]:
        """Sends `outgoing[r]` to rank r and returns what came: `incoming[r]` words of 8 bytes from rank r.

        `sent` tells the bytes to others by operator; they travel together.
        """
        if self.world == 1:
            return list(outgoing)
        received = torch.empty(sum(incoming), dtype=torch.int64)
        packed = torch.from_numpy(np.concatenate(outgoing))
        dist.all_to_all_single(received, packed, list(incoming), [len(words) for words in outgoing])
        for operator, nbytes in sent.items():
            self.count(operator, nbytes)
        return [part.numpy() for part in torch.split(received, list(incoming))]


class _Aggregate(torch.autograd.Function):
    """Forward: sum over ranks. Backward: the gradient as it is."""

    @staticmethod
    def forward(ctx: object, partial: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> Tensor:
        return all_reduce(partial.detach().clone())

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


@contextmanager
def connect(timeout_s: float = 600.0) -> Iterator[Collectives]:
    """The collectives of this process: torchrun's process group where it started us, else a single rank.

    Gloo carries host tensors and NCCL device tensors, where there is a GPU for the rank. A rank that does not
    answer for `timeout_s` fails the others.

    Raises InternalError in place of a transport's error: the rank that ended first says why it did.
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() > local_rank
    device = f"cuda:{local_rank}" if on_gpu else "cpu"
    if world == 1:
        yield Collectives(device=device)
        return
    if on_gpu:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout_s))
    try:
        yield Collectives(rank, world, device)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise InternalError(
            f"rank {rank} lost another rank of this run, whose own message says why"
        ) from error
    finally:
        dist.destroy_process_group()
