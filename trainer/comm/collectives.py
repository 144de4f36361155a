"""Collectives of the trainer, with bytes and seconds of each.

Aggregation ⊕ of DES Algorithm 1 can be run in two ways:

    aggregate    all-reduce: every rank gets the sum for all B examples and computes the same loss. Backward
                 is the identity: each rank holds the whole gradient (DES §3.2.2).
    all_to_all   reduce-scatter: a rank gets the summands of its own examples from every rank and adds them
                 up. Backward is the reverse all-to-all of the gradients.

Floats may be sent as bfloat16 (`wire`); sums are taken in float32, in the order of the ranks.

Bytes are those that this rank sends to others: a ring all-reduce of S bytes sends 2 (N − 1) / N · S, an
all-gather (N − 1) times the own share, an all-to-all the messages to others. With one rank nothing is sent
and no process group is needed.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from livectr.system.errors import ConfigError
from livectr.trainer import telemetry
from livectr.trainer.comm.abort import Abort, join
from livectr.trainer.comm.backend import DeviceName, Gpus, Seat, TorchGpus, Transport, choose, met
from livectr.trainer.step_settings import Wire

U8 = NDArray[np.uint8]


class Collectives:
    """Collectives of one rank.

    Args:
        rank: this rank.
        world: N ranks.
        device: where this rank's networks run.
        nccl: NCCL carries tensors of a GPU; else they pass through host memory, where Gloo takes them.
        wire: type of floats between ranks.
        abort: reports failures to the other ranks.
        timeout: of `apart`; None: the transport's.
        sharers: ranks whose tensors are on this rank's GPU; (): this rank alone.

    Attributes:
        bytes: collective → bytes that this rank has sent
        seconds: collective → seconds in its collectives, including the wait for other ranks
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        device: str = "cpu",
        wire: Wire = "fp32",
        abort: Abort | None = None,
        timeout: timedelta | None = None,
        *,
        nccl: bool = False,
        sharers: tuple[int, ...] = (),
    ) -> None:
        self.rank = rank
        self.world = world
        self.sharers = sharers or (rank,)
        self.abort = abort or Abort()
        self.device = torch.device(device)
        self.wire: Wire = wire
        self._nccl = nccl
        self._timeout = timeout
        self.bytes: dict[str, int] = defaultdict(int)
        self.seconds: dict[str, float] = defaultdict(float)
        self._counting = threading.Lock()
        self._group: dist.ProcessGroup | None = None

    def apart(self) -> Collectives:
        """Make collectives of host tensors for another thread of this rank. Collective.

        They have connections of their own, and are counted with these.
        """
        if self.world == 1:
            return self
        other = copy.copy(self)
        other.device, other._nccl = torch.device("cpu"), False
        other._group = dist.new_group(backend="gloo", timeout=self._timeout)
        return other

    def count(self, collective: str, sent: int) -> None:
        """Add to a collective's bytes, here and in the metrics."""
        with self._counting:
            self.bytes[collective] += sent
        telemetry.COLLECTIVE_BYTES.labels(collective).inc(sent)

    @contextmanager
    def timed(self, collective: str) -> Iterator[None]:
        """Add the seconds of a block to a collective's, here and in the metrics."""
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        with self._counting:
            self.seconds[collective] += spent
        telemetry.COLLECTIVE_SECONDS.labels(collective).inc(spent)

    def aggregate(self, partial: Tensor, collective: str) -> Tensor:
        """All-reduce ⊕ with autograd: f32[B, S] → sum over ranks, the same bits on every rank."""
        if self.world == 1:
            return partial
        total: Tensor = _Aggregate.apply(partial, lambda x: self.all_reduce(x, collective))  # type: ignore[no-untyped-call]
        return total

    def all_reduce(self, tensor: Tensor, collective: str) -> Tensor:
        """All-reduce float32 `tensor` in place and return it: the same bits on every rank."""
        return self.begin_all_reduce(tensor, collective)()

    def begin_all_reduce(self, tensor: Tensor, collective: str) -> Callable[[], Tensor]:
        """Start an asynchronous `all_reduce`; the result waits for the sums. With bfloat16 it is there."""
        if self.world == 1:
            return lambda: tensor
        if self.wire == "bf16":
            with self.timed(collective):
                self._reduce_in_pieces(tensor, collective)
            return lambda: tensor
        carried = self._carried(tensor)
        work = dist.all_reduce(carried, group=self._group, async_op=True)
        self.count(collective, 2 * (self.world - 1) * tensor.nbytes // self.world)

        def wait() -> Tensor:
            with self.timed(collective):
                work.wait()
                if carried is not tensor:
                    tensor.copy_(carried)
            return tensor

        return wait

    def _carried(self, tensor: Tensor) -> Tensor:
        """Return the tensor where its transport can take it."""
        return tensor if self._nccl else tensor.cpu()

    def _reduce_in_pieces(self, tensor: Tensor, collective: str) -> Tensor:
        """All-reduce with bfloat16 on the wire and float32 sums: reduce-scatter, then all-gather.

        Every rank uses the rounded sum, also of its own piece: the bits are the same on all ranks.
        """
        flat = tensor.view(-1)
        sizes = [len(part) for part in flat.tensor_split(self.world)]
        own = sizes[self.rank]
        total = self._send(flat, sizes, [own] * self.world).view(self.world, own).sum(dim=0)
        flat.copy_(self._send(total.repeat(self.world), [own] * self.world, sizes))
        width = 2 if self.wire == "bf16" else 4
        self.count(collective, width * (flat.numel() - own + (self.world - 1) * own))
        return tensor

    def all_to_all(
        self, outgoing: Sequence[Tensor], incoming: Sequence[int], sent: Mapping[str, int]
    ) -> list[Tensor]:
        """All-to-all with autograd; backward sends the gradients back.

        Args:
            outgoing: float32 of any length to each rank.
            incoming: numbers that come from each rank.
            sent: collective → numbers to other ranks, forward and as gradients backward; these are counted.

        Returns:
            float32[incoming[r]] from each rank.
        """
        if self.world == 1:
            return list(outgoing)
        width = 2 if self.wire == "bf16" else 4
        for collective, numbers in sent.items():
            self.count(collective, width * numbers)
        name = next(iter(sent), "all_to_all")
        flat: Tensor = _AllToAll.apply(  # type: ignore[no-untyped-call]
            torch.cat([part.reshape(-1) for part in outgoing]),
            [part.numel() for part in outgoing],
            list(incoming),
            lambda numbers, there, back: self._timed_send(numbers, there, back, name),
        )
        return list(torch.split(flat, list(incoming)))

    def _timed_send(
        self, flat: Tensor, outgoing: Sequence[int], incoming: Sequence[int], collective: str
    ) -> Tensor:
        with self.timed(collective):
            return self._send(flat, outgoing, incoming)

    def _send(self, flat: Tensor, outgoing: Sequence[int], incoming: Sequence[int]) -> Tensor:
        """All-to-all of float32 `flat`: outgoing[r] numbers to rank r, incoming[r] numbers from rank r.

        The own share, too, is rounded to the type of the wire.
        """
        dtype = torch.bfloat16 if self.wire == "bf16" else torch.float32
        carried = self._carried(flat.to(dtype))
        received = torch.empty(sum(incoming), dtype=dtype, device=carried.device)
        dist.all_to_all_single(received, carried, list(incoming), list(outgoing), group=self._group)
        return received.to(flat.device).to(torch.float32)

    def all_gather_tensors(self, own: Tensor, sizes: Sequence[int], collective: str) -> list[Tensor]:
        """All-gather with autograd: own f32[n] → f32[sizes[r]] of each rank.

        Backward is the identity on the own share, since every rank computes the same loss.
        """
        if self.world == 1:
            return [own]
        flat: Tensor = _AllGather.apply(  # type: ignore[no-untyped-call]
            own,
            sum(sizes[: self.rank]),
            lambda x: self._timed_send(x.repeat(self.world), [x.numel()] * self.world, sizes, collective),
        )
        self.count(collective, (2 if self.wire == "bf16" else 4) * (self.world - 1) * own.numel())
        return list(torch.split(flat, list(sizes)))

    def all_gather(self, own: NDArray[np.generic], collective: str) -> NDArray[np.generic]:
        """All-gather arrays of one shape and dtype → [N, *shape]."""
        if self.world == 1:
            return own[None]
        mine = torch.from_numpy(np.ascontiguousarray(own).view(np.uint8).reshape(-1))
        gathered = torch.empty(self.world, mine.numel(), dtype=torch.uint8)
        with self.timed(collective):
            dist.all_gather(list(gathered), mine, group=self._group)
        self.count(collective, (self.world - 1) * mine.nbytes)
        return gathered.numpy().view(own.dtype).reshape(self.world, *own.shape)

    def all_gather_ragged(
        self, own: NDArray[Any], sizes: Sequence[int], collective: str
    ) -> list[NDArray[Any]]:
        """All-gather numbers of 4 bytes: own [n] → [sizes[r]] of each rank."""
        return self.begin_all_gather_ragged(own, sizes, collective)()

    def begin_all_gather_ragged(
        self, own: NDArray[Any], sizes: Sequence[int], collective: str
    ) -> Callable[[], list[NDArray[Any]]]:
        """Start an asynchronous `all_gather_ragged`; the result waits for the numbers."""
        if self.world == 1:
            return lambda: [own]
        mine = torch.from_numpy(np.tile(own.view(np.int32), self.world))
        received = torch.empty(sum(sizes), dtype=torch.int32)
        work = dist.all_to_all_single(
            received, mine, list(sizes), [len(own)] * self.world, group=self._group, async_op=True
        )
        self.count(collective, (self.world - 1) * own.nbytes)

        def wait() -> list[NDArray[Any]]:
            with self.timed(collective):
                work.wait()
            return [part.numpy().view(own.dtype) for part in torch.split(received, list(sizes))]

        return wait

    def all_to_all_bytes(
        self, outgoing: Sequence[U8], incoming: Sequence[int], sent: Mapping[str, int]
    ) -> list[U8]:
        """All-to-all of bytes; the own message is not sent.

        Args:
            outgoing: message to each rank.
            incoming: bytes that come from each rank.
            sent: collective → bytes to other ranks; these are counted.
        """
        if self.world == 1:
            return list(outgoing)
        others = [0 if r == self.rank else 1 for r in range(self.world)]
        sizes = [n * other for n, other in zip(incoming, others, strict=True)]
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        packed = torch.from_numpy(
            np.concatenate([m for m, other in zip(outgoing, others, strict=True) if other])
        )
        with self.timed(next(iter(sent))):
            dist.all_to_all_single(
                received,
                packed,
                sizes,
                [len(m) * other for m, other in zip(outgoing, others, strict=True)],
                group=self._group,
            )
        for collective, nbytes in sent.items():
            self.count(collective, nbytes)
        parts = [part.numpy() for part in torch.split(received, sizes)]
        # Aligned, so that 4-byte words at a message's front can be read in place.
        return [
            outgoing[r] if r == self.rank else np.ascontiguousarray(_aligned(part))
            for r, part in enumerate(parts)
        ]


def _aligned(message: U8) -> U8:
    """Message at an address that is a multiple of 4."""
    return message if message.ctypes.data % 4 == 0 else message.copy()


class _Aggregate(torch.autograd.Function):
    """Forward: all-reduce. Backward: identity."""

    @staticmethod
    def forward(ctx: object, partial: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> Tensor:
        return all_reduce(partial.detach().clone())

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _AllToAll(torch.autograd.Function):
    """Forward: all-to-all of the parts of `flat`. Backward: reverse all-to-all of the gradients."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        flat: Tensor,
        outgoing: list[int],
        incoming: list[int],
        send: Callable[[Tensor, Sequence[int], Sequence[int]], Tensor],
    ) -> Tensor:
        ctx.outgoing, ctx.incoming, ctx.send = outgoing, incoming, send  # type: ignore[attr-defined]
        return send(flat, outgoing, incoming)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        back = ctx.send(grads[0].contiguous(), ctx.incoming, ctx.outgoing)  # type: ignore[attr-defined]
        return back, None, None, None


class _AllGather(torch.autograd.Function):
    """Forward: all-gather. Backward: gradient of the own share."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, own: Tensor, at: int, all_gather: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.at, ctx.size = at, own.numel()  # type: ignore[attr-defined]
        return all_gather(own)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].narrow(0, ctx.at, ctx.size), None, None  # type: ignore[attr-defined]


def _check_transport() -> None:
    """Raise ConfigError for a transport between ranks that a user chose, and that this PyTorch cannot open.

    PyTorch would find out after ranks have met. That looks like a lost rank, and a supervisor would try it
    again for ever.
    """
    transport = os.environ.get("GLOO_DEVICE_TRANSPORT")
    if not transport:
        return
    try:
        dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    except RuntimeError as error:
        raise ConfigError(
            f"GLOO_DEVICE_TRANSPORT is {transport}, and PyTorch {torch.__version__} cannot open it "
            f"({error}): take the variable away for plain TCP, and encrypt traffic between ranks below it"
        ) from None


@contextmanager
def connect(
    timeout_s: float = 600.0, wire: Wire = "fp32", device: DeviceName = "cpu", gpus: Gpus | None = None
) -> Iterator[Collectives]:
    """Open the collectives of this process: a rank of torchrun's process group, or a single rank.

    Ranks agree on the transport first (trainer.comm.backend). A rank that fails ends the others within
    seconds (trainer.comm.abort); a rank that hangs fails them after `timeout_s`.

    Args:
        timeout_s: of each collective.
        wire: type of floats between ranks.
        device: where networks and tables are, the same on every rank.
        gpus: GPUs of this process; None: those that PyTorch sees.

    Raises:
        ConfigError: GLOO_DEVICE_TRANSPORT names a transport that cannot be used; or `device` is gpu, and a
            rank sees none.
        InternalError: in place of a transport's error, with the rank that failed first and its error.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    gpus = gpus or TorchGpus()
    seat = Seat.here(device, gpus)
    if world == 1:
        alone = _taken(choose([seat], 0), gpus)
        yield Collectives(device=alone.device, wire=wire, sharers=alone.sharers)
        return
    _check_transport()
    store, rank, world = join(timeout_s)
    abort = Abort(store, rank, world)
    try:
        with abort.guard():
            transport = _taken(choose(met(store, rank, world, seat), rank), gpus)
            dist.init_process_group(
                transport.backend,
                store=PrefixStore("group", store),
                rank=rank,
                world_size=world,
                timeout=(timeout := timedelta(seconds=timeout_s)),
            )
            yield Collectives(
                *(rank, world, transport.device, wire, abort, timeout),
                nccl=transport.nccl,
                sharers=transport.sharers,
            )
    finally:
        abort.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _taken(transport: Transport, gpus: Gpus) -> Transport:
    """Make this rank's GPU, if it has one, the current GPU of this thread."""
    if transport.gpu is not None:
        gpus.use(transport.gpu)
    return transport
