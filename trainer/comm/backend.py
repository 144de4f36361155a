"""Choice of each rank's device, and of the transport between ranks.

Ranks exchange their seats by the run's store before they open a process group, and all choose alike: an NCCL
group in which two ranks share a GPU, or one has none, would hang until its time-out.

    device   GPUs that ranks see      a rank's tensors are on   and are exchanged by
    cpu      not looked at            the CPU                   Gloo
    gpu      one of its own each      its GPU                   NCCL
    gpu      fewer than ranks         GPU local_rank mod count  Gloo, through host memory
    gpu      none, on some rank       ConfigError on every rank
    auto     as gpu, and with none on some rank as cpu

UUIDs tell GPUs apart: ranks in containers of one machine may all see their own GPU as number 0.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import torch
from torch.distributed.distributed_c10d import Store

from livectr.kernels.runtime.device import has_gpu
from livectr.system.errors import ConfigError

LOG = logging.getLogger(__name__)

DeviceName = Literal["cpu", "gpu", "auto"]


class Gpus(Protocol):
    """GPUs of a process; tests have doubles."""

    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that this process sees, in the order of their numbers."""

    def use(self, number: int) -> None:
        """Make a GPU the current one of this thread."""


class TorchGpus:
    """GPUs that PyTorch sees."""

    def uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that this process sees, in the order of their numbers."""
        if not torch.cuda.is_available():
            return ()
        count = torch.cuda.device_count()
        return tuple(str(torch.cuda.get_device_properties(number).uuid) for number in range(count))

    def use(self, number: int) -> None:
        """Make a GPU the current one of this thread."""
        torch.cuda.set_device(number)


@dataclass(frozen=True)
class Seat:
    """Place of a rank, as the others are told.

    Attributes:
        device: its setting `device`.
        machine: name of its machine, for messages.
        local_rank: its number on the machine.
        gpus: UUIDs of the GPUs that it sees; empty with device cpu.
    """

    device: DeviceName
    machine: str
    local_rank: int
    gpus: tuple[str, ...]

    @staticmethod
    def here(device: DeviceName, gpus: Gpus) -> Seat:
        """Seat of this process, by torchrun's variables."""
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        looks = device == "gpu" or (device == "auto" and has_gpu())  # CuPy computes features and tables
        return Seat(device, socket.gethostname(), local_rank, gpus.uuids() if looks else ())

    @property
    def number(self) -> int:
        """Number of the GPU that this rank takes. ZeroDivisionError if it sees none."""
        return self.local_rank % len(self.gpus)


@dataclass(frozen=True)
class Transport:
    """Device of a rank's tensors, and what carries them.

    Attributes:
        gpu: number of this rank's GPU; None: tensors are on the CPU.
        nccl: NCCL carries tensors of GPUs; else Gloo carries all, through host memory.
        sharers: ranks whose tensors are on this GPU, this rank among them.
    """

    gpu: int | None
    nccl: bool
    sharers: tuple[int, ...] = ()

    @property
    def device(self) -> str:
        """PyTorch's name of the device."""
        return "cpu" if self.gpu is None else f"cuda:{self.gpu}"

    @property
    def backend(self) -> str:
        """Backend of the process group, in PyTorch's words."""
        return "cpu:gloo,cuda:nccl" if self.nccl else "gloo"


def met(store: Store, rank: int, world: int, own: Seat) -> list[Seat]:
    """Exchange seats by the store. Collective. Returns them by rank."""
    store.set(f"livectr/seat/{rank}", json.dumps(asdict(own)))
    found = store.multi_get([f"livectr/seat/{other}" for other in range(world)])
    seats = [json.loads(text) for text in found]
    return [Seat(**{**seat, "gpus": tuple(seat["gpus"])}) for seat in seats]


def choose(seats: Sequence[Seat], rank: int) -> Transport:
    """Transport of a rank, out of all ranks' seats; rank 0 says if GPUs are shared.

    Raises:
        ConfigError: on every rank, if their settings differ, or if one sees no GPU and needs it.
    """
    first = seats[0]
    for other, seat in enumerate(seats):
        if seat.device != first.device:
            raise ConfigError(
                f"device is {first.device} on rank 0 and {seat.device} on rank {other}: give all ranks the "
                "same settings"
            )
    if first.device == "cpu":
        return Transport(None, nccl=False)
    blind = [other for other, seat in enumerate(seats) if not seat.gpus]
    if blind and first.device == "auto":
        if rank == 0:
            LOG.info("device is auto, and rank %d has no GPU: the CPU computes everything", blind[0])
        return Transport(None, nccl=False)
    if blind:
        raise ConfigError(_sees_none(seats, blind[0]))
    cards = [seat.gpus[seat.number] for seat in seats]
    taken = set(cards)
    nccl = len(taken) == len(seats)
    if rank == 0 and not nccl:
        LOG.info(
            "%d ranks share %d GPU%s: Gloo exchanges their tensors, through host memory",
            *(len(seats), len(taken), "" if len(taken) == 1 else "s"),
        )
    sharers = tuple(other for other, card in enumerate(cards) if card == cards[rank])
    return Transport(seats[rank].number, nccl, sharers)


def _sees_none(seats: Sequence[Seat], blind: int) -> str:
    """Sentence on a rank without a GPU, and on one that has a GPU."""
    sighted = next((rank for rank, seat in enumerate(seats) if seat.gpus), None)
    who = f"rank {blind} on {seats[blind].machine}" if len(seats) > 1 else "this process"
    beside = "" if sighted is None else f", while rank {sighted} on {seats[sighted].machine} does"
    return (
        f"device is gpu, but {who} sees no GPU through PyTorch{beside}: install a PyTorch built for CUDA and "
        "give each machine a GPU, or set device to cpu"
    )
