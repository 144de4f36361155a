"""One rank of test_gpu_tables.py: trains with tables on the emulated device, and compares."""

import torch

from livectr.kernels.runtime.device import EmulatedDevice
from livectr.trainer.comm.collectives import Collectives, connect
from tests.trainer.des_worker import WAYS
from tests.trainer.gpu_tables_checks import ranks_train_alike
from tests.waiting import left_s


def main() -> None:
    """Run every kind of exchange."""
    torch.set_num_threads(1)
    with connect(timeout_s=left_s()) as shared:
        for name in ("allreduce", "partial", "mixed", "auto"):
            ranks_train_alike(Collectives(shared.rank, shared.world), EmulatedDevice, WAYS[name])
