"""One rank of test_backend.py, with GPUs that are not there: main(CASE)."""

import os
import time

import torch
import torch.distributed as dist

from livectr.system.errors import ConfigError
from livectr.trainer.comm.backend import DeviceName
from livectr.trainer.comm.collectives import connect
from tests.trainer.collectives_checks import every_collective

SOON_S = 300.0
"""Half of the ten minutes that a group of NCCL would hang; seconds on a quiet machine."""
SENTENCES = {
    "one sees none": "rank 1 on {} sees no GPU through PyTorch, while rank 0 on {} does",
    "none sees any": "rank 0 on {} sees no GPU through PyTorch: install",
    "settings differ": "device is cpu on rank 0 and gpu on rank 1: give all ranks the same settings",
}


class Doubles:
    """GPUs by their UUIDs; `used` has those that were made current."""

    def __init__(self, *uuids: str) -> None:
        self._uuids = uuids
        self.used: list[int] = []

    def uuids(self) -> tuple[str, ...]:
        return self._uuids

    def use(self, number: int) -> None:
        self.used.append(number)


class Unseen(Doubles):
    """GPUs that nobody may look for."""

    def uuids(self) -> tuple[str, ...]:
        raise AssertionError("the setting is cpu")


def main(case: str) -> None:
    """Connect as rank RANK of two, and exchange tensors or find the sentence."""
    rank, device, gpus = int(os.environ["RANK"]), "gpu", Doubles("GPU-a")
    if case == "cpu":
        device, gpus = "cpu", Unseen()
    elif case == "none sees any" or (case == "one sees none" and rank == 1):
        gpus = Doubles()
    elif case == "settings differ":
        device = "cpu" if rank == 0 else "gpu"
    start = time.monotonic()
    try:
        exchange(device, gpus)  # type: ignore[arg-type]
    except ConfigError as error:
        machine = os.uname().nodename
        assert SENTENCES[case].format(machine, machine) in str(error), error
    else:
        assert case not in SENTENCES
    assert time.monotonic() - start < SOON_S
    assert gpus.used == ([0] if case == "one GPU" else [])


def exchange(device: DeviceName, gpus: Doubles) -> None:
    """Exchange tensors of the CPU: a double has no memory."""
    with connect(device=device, gpus=gpus) as shared:
        assert dist.get_backend() == "gloo"
        assert shared.device == torch.device("cuda:0" if device == "gpu" else "cpu")
        every_collective(shared, "cpu")
