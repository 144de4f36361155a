"""GPU tier of a rank's tables: hot rows on its GPU, all others in DRAM (kernels.gpu_table.gpu_cache).

    forward, backward    read and train rows on the GPU; missing rows come from the host table
    flush                write changed rows to the host tables, before these are marked, exported or read
    drop                 forget the GPU's rows, after the host tables were filled from a checkpoint
    erase                erase keys in both tiers

The tier of a row never changes a result: tables, checkpoints and versions have the bits of host tables alone.
(Networks on a GPU round differently than on a CPU, wherever the tables are.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from livectr.ingest.language.policies import TablePolicy
from livectr.kernels.gpu_table.device_store import Target
from livectr.kernels.gpu_table.gpu_cache import GpuCache
from livectr.kernels.runtime.device import CudaDevice
from livectr.kernels.table.table import DynamicTable
from livectr.system.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from livectr.trainer.options import TrainOptions


@dataclass(frozen=True)
class GpuTables:
    """Setting that puts tables on a GPU.

    Attributes:
        rows: most rows there, over all tables of a rank
        target: device; tests use the emulated device
    """

    rows: int
    target: Target = CudaDevice

    def cache(
        self, tables: Mapping[str, DynamicTable], policies: Mapping[str, TablePolicy], device: torch.device
    ) -> GpuCache | None:
        """Make the cache over a rank's tables; None where the rank has no table.

        Args:
            tables: of this rank.
            policies: of all tables, other ranks' too.
            device: where the networks run.

        Raises:
            ConfigError: a policy does not fit a GPU, or there is no GPU.
        """
        refused = sorted(name for name, policy in policies.items() if policy.admit_after is not None)
        if refused:
            raise ConfigError(
                f"table {refused[0]!r} has admit_after, which tables on a GPU do not support: leave it out, "
                "or set gpu_rows to 0, so that tables are in host memory"
            )
        if self.target is CudaDevice and device.type != "cuda":
            raise ConfigError(
                "tables on a GPU need a PyTorch that sees it, and this one does not: install one built for "
                "CUDA, or set gpu_rows to 0, so that tables are in host memory"
            )
        if not tables:
            return None
        return GpuCache(tables, budget_rows=self.rows, target=self.target)


def gpu_tables(options: TrainOptions) -> GpuTables | None:
    """GPU tier that these options ask for, with the budgets of `gpu_memory`; None: tables in host memory."""
    if options.device == "cpu" or options.gpu_rows == 0:
        return None
    if options.gpu_rows is None:
        raise InternalError("gpu_rows has no number: with_gpu_budgets gives it one")
    return GpuTables(options.gpu_rows)
