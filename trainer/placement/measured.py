"""Measured keys and bytes of every field, the input of `trainer.placement.balance`.

A checkpoint's manifest and a run's report hold the keys of every field and the rows of every table so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from livectr.ingest.common_features import AnyFeatures, Common, CommonFeatures
from livectr.ingest.extract.device_features import DeviceFeatures
from livectr.ingest.plan.features import Features
from livectr.kernels.table.layout import RowLayout
from livectr.trainer.placement.balance import FieldStats

I64 = NDArray[np.int64]

HEADER_BYTES = 16
INDEX_BYTES = 25
"""Bytes of a key in a table's index (kernels/runtime/index.cuh): 16 a slot, at a mean load of 0.65."""


def row_bytes(layout: RowLayout) -> int:
    """Mean bytes of a row in memory, with its header and its slot in the index."""
    return -(-(HEADER_BYTES + layout.stored_bytes) // 8) * 8 + INDEX_BYTES


def field_keys(features: AnyFeatures, common: Common, fields: int) -> I64:
    """Number of keys of each field in a batch, i64[F]; O(F)."""
    keys = np.zeros(fields, np.int64)
    for part, numbers in _parts(features, common, fields):
        keys[numbers] = part.counts
    return keys


def stats_of(
    tables: Sequence[str], keys: Sequence[float], table_bytes: Mapping[str, float]
) -> tuple[FieldStats, ...]:
    """Statistics of fields.

    Args:
        tables: table of each field.
        keys: of each field.
        table_bytes: by table; a missing table has 0.
    """
    return tuple(FieldStats(t, n, table_bytes.get(t, 0)) for t, n in zip(tables, keys, strict=True))


def _parts(
    features: AnyFeatures, common: Common, fields: int
) -> list[tuple[Features | DeviceFeatures, list[int]]]:
    """Common and own features that have rows, with the numbers of their fields."""
    if isinstance(features, CommonFeatures):
        own = [f for f in range(fields) if f not in common.fields]
        parts = [(features.common, list(common.fields)), (features.own, own)]
    else:
        parts = [(features, list(range(fields)))]
    return [(part, numbers) for part, numbers in parts if part.rows]
