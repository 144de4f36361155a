"""Keys and bytes of every field, as `trainer.placement.balance` wants them.

A checkpoint's manifest and a run's report tell the keys of every field and the rows of every table so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.table.layout import RowLayout
from livectr.trainer.placement.balance import FieldStats

I64 = NDArray[np.int64]

INDEX_BYTES = 25
"""Of a key in a table's index (kernels/runtime/index.cuh): 16 bytes a slot, at a load of 0.65 as its mean."""


def row_bytes(layout: RowLayout) -> int:
    """Memory that a row takes with its header and its place in the index, on average."""
    return 16 + 4 * layout.stride + INDEX_BYTES


def field_keys(features: Features | CommonFeatures, common: Common, fields: int) -> I64:
    """Keys of each field in a batch, i64[F]; O(F)."""
    keys = np.zeros(fields, np.int64)
    for side, numbers in _sides(features, common, fields):
        keys[numbers] = np.diff(side.offsets[:: side.rows])
    return keys


def stats_of(
    tables: Sequence[str], keys: Sequence[float], table_bytes: Mapping[str, float]
) -> tuple[FieldStats, ...]:
    """Fields whose keys and whose tables' bytes are known; a table that is not known has none."""
    return tuple(FieldStats(t, n, table_bytes.get(t, 0)) for t, n in zip(tables, keys, strict=True))


def _sides(
    features: Features | CommonFeatures, common: Common, fields: int
) -> list[tuple[Features, list[int]]]:
    """Features with rows, and the numbers of their fields."""
    if isinstance(features, Features):
        sides = [(features, list(range(fields)))]
    else:
        own = [f for f in range(fields) if f not in common.fields]
        sides = [(features.common, list(common.fields)), (features.own, own)]
    return [(side, numbers) for side, numbers in sides if side.rows]
