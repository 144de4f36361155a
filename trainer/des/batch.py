"""A batch on its way through a step, before its rows are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from livectr.trainer.content.ams import ContentRequest
from livectr.trainer.des.ids import Ids
from livectr.trainer.des.online import OnlineBatch
from livectr.trainer.tables.tiers import Prefetched

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class RequestedRows:
    """Rows that a rank requests for its own examples: fields whose exchange is `rows`, U unique keys.

    Attributes:
        lengths: i32[cells] of each field of `Route.rows`, keys of each cell; a cell is an example, or a
            group for a common field
        index: i64[nnz] over these fields, the row of the U that each key reads
        received: rows that come from each rank; the U rows are numbered in this order
    """

    lengths: list[I32]
    index: I64
    received: tuple[int, ...]


@dataclass(frozen=True)
class GlobalBatch:
    """B examples of a step, with the keys that this rank reads for them. Rank-major: rank 0's come first.

    Attributes:
        rows: examples of each rank; B is their sum
        groups: groups of each rank; its examples where it has not grouped. G is their sum
        ids: keys of the fields of `Route.read_by_owner`; a common field has G cells, another B
        group_of: i32[B], group of each example; None where no rank has grouped, or this rank adds no group's
            partial results to those of examples
        own_group_of: i32[b], the same among the own examples and groups; None where they are not grouped
        requested_keys: keys that each rank requests, for each own table of `Route.row_sources`
        requested_rows: rows that this rank requests
        label: f32[B], or f32[b] of the own examples where a rank finishes only these
        dense: f32[·, own] dense features of the same examples, without common features, where they were
            computed; None where this rank has none
        common: f32[·, common] dense features of their groups; None where this rank has none
    """

    rows: tuple[int, ...]
    groups: tuple[int, ...]
    ids: Ids
    group_of: I32 | None
    own_group_of: I32 | None
    requested_keys: list[list[I64]]
    requested_rows: RequestedRows
    label: F32
    dense: F32 | Tensor | None
    common: F32 | Tensor | None

    def __len__(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True)
class PreparedBatch:
    """A batch between `DesStep.prepare` and `DesStep.learn`.

    Attributes:
        batch: keys that this rank reads, and its labels and dense features
        prefetched: rows that are being read from SSD; None without tiers
        content: name → ids that this rank requests and features that it embeds
        online: all examples' keys, if first and second order are learned example by example
    """

    batch: GlobalBatch
    prefetched: Prefetched | None
    content: Mapping[str, ContentRequest]
    online: OnlineBatch | None = None
