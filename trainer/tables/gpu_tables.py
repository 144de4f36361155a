"""A rank's tables with their hot rows on its GPU: the tier GPU → DRAM of a step
(kernels.gpu_table.gpu_cache).

    forward, backward    rows are read and trained on the GPU; what it lacks comes from the host table
    flush                before host tables are marked, exported or read: they get what changed
    drop                 after host tables were filled from a checkpoint: the GPU forgets what it held
    erase                what policies erase leaves both places

Where a row is never changes a result: tables, checkpoints and versions have the bits of host tables alone.
(Networks on a GPU round differently than on a CPU; that has nothing to do with where the tables are.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from livectr.ingest.language.policies import TablePolicy
from livectr.kernels.errors import ConfigError
from livectr.kernels.gpu_table.device_store import (
    BUCKET_BYTES,
    BUCKET_SLOTS,
    HEADER_BYTES,
    LOAD,
    Slabs,
    Target,
)
from livectr.kernels.gpu_table.gpu_cache import GpuCache
from livectr.kernels.runtime.device import CudaDevice, free_memory
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.options import TrainOptions

FREE_SHARE = 0.5
"""Of the device memory that is free at the start, what rows may take that nobody has given a number; the rest
is for features, networks and batches."""


@dataclass(frozen=True)
class GpuTables:
    """That tables are on a GPU. rows: most rows there, over all tables of a rank; None: as many as FREE_SHARE
    of the free device memory holds. target: where; tests run it on the emulated device."""

    rows: int | None = None
    target: Target = CudaDevice

    def cache(
        self, tables: Mapping[str, DynamicTable], policies: Mapping[str, TablePolicy], device: torch.device
    ) -> GpuCache | None:
        """The cache over a rank's tables; None where it has none.

        policies: of all tables, other ranks' too. device: where the networks run.
        Raises ConfigError for what cannot be together, and without a GPU.
        """
        refused = sorted(name for name, policy in policies.items() if policy.admit_after is not None)
        if refused:
            raise ConfigError(
                f"table {refused[0]!r} has admit_after, which tables on a GPU do not know: leave it out, "
                "or set gpu_rows to 0, so that tables are in host memory"
            )
        if self.target is CudaDevice and device.type != "cuda":
            raise ConfigError(
                "tables on a GPU need a PyTorch that sees it, and this one does not: install one built for "
                "CUDA, or set gpu_rows to 0, so that tables are in host memory"
            )
        if not tables:
            return None
        rows = self.rows
        if rows is None:
            layout = next(iter(tables.values())).layout
            rows = min(int(FREE_SHARE * free_memory() / row_bytes(layout)), 2**31)
        return GpuCache(tables, budget_rows=rows, target=self.target)


def row_bytes(layout: RowLayout) -> float:
    """Device memory of a row at most, with its part of the index: after a rehash that is half full."""
    return Slabs.of(layout).pitch + HEADER_BYTES + BUCKET_BYTES / BUCKET_SLOTS / (LOAD / 2)


def gpu_tables(options: TrainOptions) -> GpuTables | None:
    """Where a run has its tables; None: in host memory."""
    if options.device != "gpu" or options.gpu_rows == 0:
        return None
    return GpuTables(options.gpu_rows)
