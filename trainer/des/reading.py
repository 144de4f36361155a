"""Rows of a step: read from this rank's tables as leaves of the autograd graph, and trained.

    fields of `Route.read_by_owner`   pooled: common f32[G, F, K], own f32[B, F, K]; a pair of blocks of the
                                      fields of each exchange
    gathered sequences                f32[nnz, K] each, not pooled; only where a rank finishes all examples
    requested keys                    f32[U, K] of each table that ranks request from this rank, by rank

K is the width of a row, all roles together. One call reads all rows and one trains them: a row that is read
in several places learns once a step, from the sum of its gradients.

With a GPU cache, rows and gradients pass between tables and networks on the device, without a host copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from livectr.kernels.gpu_table.gpu_cache import CachedFields
from livectr.kernels.table.field_tables import FieldTables
from livectr.trainer.des.batch import F32, I32, I64, GlobalBatch
from livectr.trainer.des.route import Route
from livectr.trainer.host_copies import HostCopies, to_device
from livectr.trainer.tables.rank_tables import RankTables

PREFETCHED = 2
"""Batches that may be prefetched and not read: the next, and the one that is read then."""
POOLED = 6
"""Blocks of pooled rows: `Leaves.common`, `Leaves.own` and `Leaves.vectors`."""


@dataclass(frozen=True)
class Leaves:
    """Rows of a step, in the shapes of the module's docstring.

    Attributes:
        common: pooled rows of the common fields whose exchange is `partial`
        own: pooled rows of the other fields whose exchange is `partial`
        vectors: pooled rows that are sent: of common fields and others of `Route.vectors`, then of
            `Route.split_vectors`, partial sums
        sequences: field → rows of all its keys
        lengths: field → i32[cells], keys of each cell of a sequence
        sizes: field → longest list, and vectors of all examples, of sequences whose lengths are on a device
        requested: rows of each table that ranks request
    """

    common: Tensor
    own: Tensor
    vectors: tuple[Tensor, ...]
    sequences: dict[int, Tensor]
    lengths: dict[int, I32 | Tensor]
    sizes: dict[int, tuple[int, int]]
    requested: list[Tensor]

    def __iter__(self) -> Iterator[Tensor]:
        yield from (self.common, self.own, *self.vectors, *self.sequences.values(), *self.requested)

    def clear(self, columns: list[int]) -> None:
        """Set the gradients of some columns of the rows to zero."""
        for leaf in self:
            if leaf.grad is not None:
                for column in columns:
                    leaf.grad.select(-1, column).zero_()

    def sums(self) -> list[Tensor]:
        """Sums of gradients, f32[] each; not finite where a gradient is not."""
        return [leaf.grad.sum() for leaf in self if leaf.grad is not None]


@dataclass(frozen=True, eq=False)
class Request:
    """Arguments of the tables' front for a batch.

    Attributes:
        batch: whose rows are read
        offsets: i32[cells + 1]
        keys: i64[nnz]
        rows: rows of each block
        lengths: field → i32[cells], keys of each cell of a sequence
        sizes: reads i64[2, S] of the sequences whose lengths are on a device; see `Leaves.sizes`
    """

    batch: GlobalBatch
    offsets: I32 | Tensor
    keys: I64 | Tensor
    rows: tuple[int, ...]
    lengths: dict[int, I32 | Tensor]
    sizes: Callable[[], list[NDArray[np.int64]]]


class Reading:
    """Reads and trains one rank's tables for the global batch.

    Args:
        tables: of this rank.
        names: name of each field.
        route: exchange of every field.
        rank: this rank.
        copies: of the networks' device.
    """

    def __init__(
        self, tables: RankTables, names: tuple[str, ...], route: Route, rank: int, copies: HostCopies
    ) -> None:
        self.fields = route.read_by_owner(rank)
        self.sequences = () if route.scatter else tuple(f for f in route.sequences if f in self.fields)
        self.requested_tables = route.requested_tables(rank)
        self._common_fields = route.common.fields
        self.common = [f in route.common.fields for f in self.fields]
        self._common_at = [i for i, common in enumerate(self.common) if common]
        self._own_at = [i for i, common in enumerate(self.common) if not common]
        self._field_tables = [route.tables[f] for f in self.fields]
        self.device, self._copies = copies.device, copies
        reads = [(names[f], route.tables[f]) for f in (*self.fields, *self.sequences)]
        reads += [(table, table) for table in self.requested_tables]
        extra = len(reads) - len(self.fields)
        pair = [
            2 * (route.field_exchange[f] == "vectors") + 2 * (f in route.split_vectors) for f in self.fields
        ]
        blocks = [at + (not common) for at, common in zip(pair, self.common, strict=True)]
        blocks += range(POOLED, POOLED + extra)
        self._front = tables.front(reads, blocks)
        self._rows_on = torch.device("cpu")
        self._ahead: deque[Request] = deque(maxlen=PREFETCHED)

    @property
    def host(self) -> FieldTables:
        """Front of the host's tables, where no GPU holds the rows."""
        assert isinstance(self._front, FieldTables)
        return self._front

    def keys(self, batch: GlobalBatch) -> dict[str, I64]:
        """Table → keys i64[n] on the host that a batch reads, with repetitions."""
        ends, keys = batch.ids.ends, batch.ids.keys
        assert isinstance(keys, np.ndarray), "keys stay on a device where no tier below it reads them"
        parts: dict[str, list[I64]] = {}
        for i, table in enumerate(self._field_tables):
            parts.setdefault(table, []).append(keys[ends[i] : ends[i + 1]])
        for table, requested in zip(self.requested_tables, batch.requested_keys, strict=False):
            parts.setdefault(table, []).extend(requested)
        return {table: np.concatenate(lists) for table, lists in parts.items()}

    def _cells(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """Prefix sum of the cells of each field, i64[F + 1]."""
        groups, rows = sum(batch.groups), len(batch)
        return np.cumsum([0, *(groups if common else rows for common in self.common)])

    def _request(self, batch: GlobalBatch) -> Request:
        """Pooled fields, and then lists of keys whose rows are not pooled."""
        groups, rows = sum(batch.groups), len(batch)
        offsets, keys, ends = batch.ids.offsets, batch.ids.keys, batch.ids.ends
        single: list[I64 | Tensor] = []
        lengths: dict[int, I32 | Tensor] = {}
        cells = self._cells(batch)
        for f in self.sequences:
            i = self.fields.index(f)
            own = offsets[cells[i] : cells[i + 1] + 1]
            lengths[f] = own.diff() if isinstance(own, Tensor) else np.diff(own)
            single.append(keys[ends[i] : ends[i + 1]])
        single += [np.concatenate(parts) for parts in batch.requested_keys]
        if single:
            first = int(ends[-1]) + 1
            end = first + sum(map(len, single))
            offsets = _joined([offsets, _counted(first, end, offsets)])
            keys = _joined([keys, *single])
        pooled = (groups, rows) * (POOLED // 2)
        blocks = (*pooled, *map(len, single))
        return Request(batch, offsets, keys, blocks, lengths, self._begin_sizes(batch, lengths))

    def _begin_sizes(
        self, batch: GlobalBatch, lengths: Mapping[int, I32 | Tensor]
    ) -> Callable[[], list[NDArray[np.int64]]]:
        """Begin to copy sizes of lists on a device: a prefetched batch's come with the logits before it."""
        resident = {f: part for f, part in lengths.items() if isinstance(part, Tensor)}
        if not resident:
            return list
        of_example = dict(resident)
        if batch.group_of is not None:
            list_of = to_device(batch.group_of.astype(np.int64), self.device)
            for f in set(self._common_fields).intersection(resident):
                of_example[f] = resident[f].index_select(0, list_of)
        longest = torch.stack([part.max() for part in resident.values()])
        nnz = torch.stack([part.sum() for part in of_example.values()])
        return self._copies.begin(torch.stack([longest.long(), nnz]))

    def prefetch(self, batch: GlobalBatch) -> None:
        """Bring rows of the batch after the next `forward`'s to the GPU, where it has rows."""
        if isinstance(self._front, CachedFields) and len(batch):
            request = self._request(batch)
            self._ahead.append(request)
            self._front.prefetch(request.offsets, request.keys, *request.rows)

    def forward(self, batch: GlobalBatch) -> Leaves:
        """Read the rows; missing keys are inserted."""
        request = next((each for each in self._ahead if each.batch is batch), None)
        if request is None:
            request = self._request(batch)
        else:
            self._ahead.remove(request)
        results = self._front.forward(request.offsets, request.keys, *request.rows)
        values = [from_dlpack(array) for array in results]
        self._rows_on = values[0].device
        leaves = [value.to(self.device) for value in values]
        blocks = [leaf.requires_grad_() for leaf in leaves[:POOLED]]
        singles = [leaf.squeeze(1).requires_grad_() for leaf in leaves[POOLED:]]
        count = len(self.sequences)
        return Leaves(
            common=blocks[0],
            own=blocks[1],
            vectors=tuple(blocks[2:]),
            sequences=dict(zip(self.sequences, singles[:count], strict=True)),
            lengths=request.lengths,
            sizes=_sizes(request),
            requested=singles[count:],
        )

    def read(self, batch: GlobalBatch) -> F32:
        """Read the pooled rows f32[B, F, K] of fields that are all `partial`, on the host.

        Examples have copies of their groups' rows.
        """
        assert isinstance(batch.ids.offsets, np.ndarray) and isinstance(batch.ids.keys, np.ndarray)
        rows = sum(batch.groups), len(batch), *[0] * (POOLED - 2)
        common, own = self.host.forward(batch.ids.offsets, batch.ids.keys, *rows)[:2]
        return self._every(common, own, batch)

    def values(self, leaves: Leaves, batch: GlobalBatch) -> F32:
        """Pooled rows of `forward` as of `read`."""
        return self._every(leaves.common.detach().numpy(), leaves.own.detach().numpy(), batch)

    def _every(self, common: F32, own: F32, batch: GlobalBatch) -> F32:
        """Rows f32[B, F, K] of all fields."""
        if not self._common_at:
            return own
        values = np.empty((len(batch), len(self.fields), self.host.dim), np.float32)
        values[:, self._own_at] = own
        values[:, self._common_at] = common if batch.group_of is None else common[batch.group_of]
        return values

    def learn(self, gradient: F32, batch: GlobalBatch) -> int:
        """Train the rows of `read` with one optimizer step; returns their number."""
        common, own = self._apart(gradient, batch)
        nothing = np.empty((0, 0, self.host.dim), np.float32)
        return self.host.backward(common, own, *[nothing] * (POOLED - 2))

    def add(self, leaves: Leaves, gradient: F32, batch: GlobalBatch) -> None:
        """Add the gradient of `values` to those of the leaves."""
        for leaf, part in zip((leaves.common, leaves.own), self._apart(gradient, batch), strict=True):
            more = torch.from_numpy(part)
            leaf.grad = more if leaf.grad is None else leaf.grad.add_(more)

    def _apart(self, gradient: F32, batch: GlobalBatch) -> tuple[F32, F32]:
        """Gradients of common fields, f32[G, ·, K], and of the other fields, f32[B, ·, K]."""
        common = np.zeros((sum(batch.groups), len(self._common_at), gradient.shape[2]), np.float32)
        if not self._common_at:
            return common, gradient
        group_of = np.arange(len(batch)) if batch.group_of is None else batch.group_of
        np.add.at(common, group_of, gradient[:, self._common_at])
        return common, np.ascontiguousarray(gradient[:, self._own_at])

    def backward(self, leaves: Leaves) -> int:
        """Train all rows that were read with one optimizer step; returns their number."""
        grads = []
        for leaf in leaves:
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            grad = (grad if grad.ndim == 3 else grad[:, None]).to(self._rows_on)
            grads.append(grad if grad.is_cuda else grad.numpy())
        return self._front.backward(*grads)


def _sizes(request: Request) -> dict[int, tuple[int, int]]:
    """Sizes of lists on a device by field; waits unless a later wait for copies has passed."""
    resident = [f for f, part in request.lengths.items() if isinstance(part, Tensor)]
    found = [part.T.tolist() for part in request.sizes()]
    return {f: (longest, nnz) for f, (longest, nnz) in zip(resident, *found, strict=True)} if found else {}


def _joined(parts: list[Any]) -> Any:
    """Arrays of the host one after the other, or tensors of a device, which are copied there."""
    return torch.cat(parts) if isinstance(parts[0], Tensor) else np.concatenate(parts)


def _counted(first: int, end: int, like: I32 | Tensor) -> I32 | Tensor:
    """Numbers i32 from `first` to below `end`, where `like` is."""
    if isinstance(like, Tensor):
        return torch.arange(first, end, dtype=torch.int32, device=like.device)
    return np.arange(first, end, dtype=np.int32)
