"""The rows that a step reads out of a rank's tables, as leaves of the graph, and what they learn.

    fields of `Route.far`     common f32[G, Fc, D], own f32[B, Fo, D]
    gathered sequences        f32[nnz, D] each, every key by itself; only where a rank finishes all samples
    keys that ranks ask for   f32[U, D] of each table that they ask this rank for, rank by rank

One call reads all of them and one trains them: a row that is read in several ways learns once a step, from
the sum of its gradients.

With a cache, rows and gradients cross between tables and networks on the device, without a host copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from livectr.kernels.gpu_table.gpu_cache import CachedFields, GpuCache
from livectr.kernels.table.table import DynamicTable, FieldTables
from livectr.trainer.des.exchange import GlobalBatch
from livectr.trainer.des.route import Route

I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Leaves:
    """What was read; see the module's docstring. lengths: i32[cells] of each sequence."""

    common: Tensor
    own: Tensor
    sequences: dict[int, Tensor]
    lengths: dict[int, I32]
    asked: list[Tensor]

    def __iter__(self) -> Iterator[Tensor]:
        yield from (self.common, self.own, *self.sequences.values(), *self.asked)

    @property
    def finite(self) -> bool:
        """Whether all gradients are numbers."""
        return all(leaf.grad is None or bool(torch.isfinite(leaf.grad.sum())) for leaf in self)


class Reading:
    """Reads and trains one rank's tables for the whole batch.

    cache: that of the tables, where they are on a GPU. device: where the networks run.
    """

    def __init__(
        self,
        tables: Mapping[str, DynamicTable],
        names: tuple[str, ...],
        route: Route,
        rank: int,
        device: torch.device,
        cache: GpuCache | None = None,
    ) -> None:
        self.far = route.far(rank)
        self.sequences = () if route.scatter else tuple(f for f in route.sequences if f in self.far)
        self.row_tables = route.asked(rank)
        self.common = [f in route.common.fields for f in self.far]
        self._far_tables = [route.tables[f] for f in self.far]
        self.device = device
        fields = [(names[f], route.tables[f]) for f in (*self.far, *self.sequences)]
        fields += [(table, table) for table in self.row_tables]
        extra = len(fields) - len(self.far)
        blocks = [*(int(not common) for common in self.common), *range(2, 2 + extra)]
        self._front: FieldTables | CachedFields
        if cache is None:
            self._front = FieldTables({table: tables[table] for _, table in fields}, fields, blocks)
        else:
            self._front = CachedFields(cache, fields, blocks)
        self._rows_on = torch.device("cpu")

    def keys(self, batch: GlobalBatch) -> dict[str, NDArray[np.int64]]:
        """Table → the keys that a batch reads, i64[n], repeated ones included."""
        ends = batch.offsets[self._cells(batch)]
        parts: dict[str, list[NDArray[np.int64]]] = {}
        for i, table in enumerate(self._far_tables):
            parts.setdefault(table, []).append(batch.keys[ends[i] : ends[i + 1]])
        for table, asked in zip(self.row_tables, batch.asked, strict=False):
            parts.setdefault(table, []).extend(asked)
        return {table: np.concatenate(found) for table, found in parts.items()}

    def _cells(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """Where the fields of `far` begin among a batch's cells, and where the last ends."""
        groups, rows = sum(batch.cells), len(batch)
        return np.cumsum([0, *(groups if common else rows for common in self.common)])

    def forward(self, batch: GlobalBatch) -> Leaves:
        """The values; missing keys are inserted."""
        groups, rows = sum(batch.cells), len(batch)
        offsets, keys = batch.offsets, batch.keys
        more = []
        lengths: dict[int, I32] = {}
        cells = self._cells(batch)
        for f in self.sequences:
            i = self.far.index(f)
            own = offsets[cells[i] : cells[i + 1] + 1]
            lengths[f] = np.diff(own)
            more.append(keys[own[0] : own[-1]])
        asked = [np.concatenate(parts) for parts in batch.asked]
        more += asked
        if more:
            added = sum(map(len, more))
            start = int(offsets[-1])
            offsets = np.r_[offsets, np.arange(start + 1, start + added + 1, dtype=np.int32)]
            keys = np.concatenate([keys, *more])
        results = self._front.forward(offsets, keys, groups, rows, *map(len, more))
        values = [from_dlpack(array) for array in results]
        self._rows_on = values[0].device
        leaves = [one.to(self.device) for one in values]
        singles = [leaf.squeeze(1).requires_grad_() for leaf in leaves[2:]]
        count = len(self.sequences)
        return Leaves(
            leaves[0].requires_grad_(),
            leaves[1].requires_grad_(),
            dict(zip(self.sequences, singles[:count], strict=True)),
            lengths,
            singles[count:],
        )

    def backward(self, leaves: Leaves) -> int:
        """One optimiser step of all rows that were read; returns how many."""
        grads = []
        for leaf in leaves:
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            grad = (grad if grad.ndim == 3 else grad[:, None]).to(self._rows_on)
            grads.append(grad if grad.is_cuda else grad.numpy())
        return self._front.backward(*grads)
