"""Tables of one rank in the memory that it has: DRAM, with a GPU above it and an SSD below, or either.

A batch's rows are brought from SSD to DRAM first, and from DRAM to the GPU then. Tables of a GPU over an SSD
note the uses of rows on the GPU, too: a row that the GPU uses stays in DRAM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from livectr.ingest.language.policies import TablePolicy
from livectr.kernels.gpu_table.gpu_cache import CachedFields, GpuCache
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import DynamicTable
from livectr.trainer.tables.gpu_tables import GpuTables
from livectr.trainer.tables.tiers import Prefetched, Tiers

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class BothTiers:
    """GPU over DRAM over SSD."""

    gpu: GpuTables
    tiers: Tiers


Tier = Tiers | GpuTables | BothTiers | None
"""SSD below DRAM, GPU above it, or both; None: all rows in DRAM."""


class RankTables:
    """Tables of one rank, by name.

    Args:
        names: this rank's tables.
        layout: of their rows.
        seed: of their initial rows.
        tier: tiers beside DRAM.
        policies: of all tables, other ranks' too.
        device: where the networks run.

    Raises:
        ConfigError: tables cannot be on this GPU.

    Attributes:
        tables: name → table of the host; read it after a `flush`
        cache: rows on the GPU; None: no rows on a GPU
        resident: rows are found by keys on the GPU alone: keys need not come to the host
        tiered: True with tiers beside DRAM, on every rank, whether it has tables or not
    """

    def __init__(
        self,
        names: Sequence[str],
        layout: RowLayout,
        seed: int,
        tier: Tier,
        policies: Mapping[str, TablePolicy],
        device: torch.device,
    ) -> None:
        self.tiered = tier is not None
        below = tier.tiers if isinstance(tier, BothTiers) else tier
        gpu = tier.gpu if isinstance(tier, BothTiers) else tier
        self.tiers = below if isinstance(below, Tiers) else None
        new_table = DynamicTable if self.tiers is None else self.tiers.table
        self.tables: dict[str, DynamicTable] = {
            name: new_table(layout, name=name, seed=seed) for name in names
        }
        self._factors: dict[str, float] = {}  # of `set_rate`, by prefix
        self.cache: GpuCache | None = None
        if isinstance(gpu, GpuTables):
            self.cache = gpu.cache(self.tables, policies, device)
        self.resident = self.cache is not None and self.tiers is None

    def front(
        self, fields: Sequence[tuple[str, str]], blocks: Sequence[int] | None = None
    ) -> FieldTables | CachedFields:
        """Reader of these (name, table) fields; `blocks`: number of the output block of each."""
        if self.cache is not None:
            return CachedFields(self.cache, fields, blocks)
        tables = {table: self.tables[table] for _, table in fields}
        return FieldTables(tables, fields, blocks)

    def prefetch(self, keys: Mapping[str, I64]) -> Prefetched | None:
        """Start to read rows from SSD, by table; None without tiers."""
        return None if self.tiers is None else self.tiers.prefetch(keys)

    def promote(self, prefetched: Prefetched | None) -> None:
        """Put prefetched rows into DRAM; no thread of the GPU's cache reads there meanwhile."""
        if self.cache is not None:
            self.cache.end_step()
        if self.tiers is not None and prefetched is not None:
            self.tiers.promote(prefetched)

    def evict(self) -> None:
        """End a step: the GPU's thread is done with DRAM; rows not used for long move from there to SSD."""
        if self.cache is not None:
            self.cache.end_step()
        if self.tiers is not None:
            self.tiers.evict()

    def set_rate(self, factor: float, prefix: str) -> None:
        """Multiply the learning rates of all segments whose names begin with `prefix`."""
        if self._factors.get(prefix) == factor:  # most schedules are constant, most steps short
            return
        for table in self.tables.values():
            table.set_rate(factor, prefix)
        self._factors[prefix] = factor

    def flush(self) -> None:
        """Write changed rows of the GPU to the host's tables, before these are marked or read."""
        if self.cache is not None:
            self.cache.flush()

    def drop(self) -> None:
        """Forget the rows on the GPU, after the host's tables were filled from a checkpoint."""
        if self.cache is not None:
            self.cache.drop()

    def erase(self, table: str, keys: I64) -> int:
        """Erase keys of a table from GPU and host; returns how many were there."""
        return self.tables[table].erase(keys) if self.cache is None else self.cache.erase(table, keys)


def tier_of(tiers: Tiers | None, gpu: GpuTables | None) -> Tier:
    """Tiers beside DRAM that a run's options ask for."""
    if tiers is not None and gpu is not None:
        return BothTiers(gpu, tiers)
    return tiers or gpu
