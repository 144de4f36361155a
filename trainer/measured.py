"""Keys and bytes of every field, as `trainer.balance` wants them.

A checkpoint's manifest and a run's report tell the keys of every field and the rows of every table so far.

Of the first batch, gathered over ranks, so that all place alike:

    counts = collectives.all_gather(batch_counts(features, common, F), "placement").sum(axis=0)
    placement = balance(stats_of_batch(tables, counts, row_bytes(layout)), world, rank_bytes=…)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ingest.common import Common, CommonFeatures
from ingest.features import Features
from kernels.layout import RowLayout
from kernels.unique import unique_segments
from trainer.balance import FieldStats

I64 = NDArray[np.int64]

INDEX_BYTES = 25
"""Of a key in a table's index (kernels/index.cuh): 16 bytes a slot, at a load of 0.65 as its mean."""


def row_bytes(layout: RowLayout) -> int:
    """Memory that a row takes with its header and its place in the index, on average."""
    return 16 + 4 * layout.stride + INDEX_BYTES


def field_keys(features: Features | CommonFeatures, common: Common, fields: int) -> I64:
    """Keys of each field in a batch, i64[F]; O(F)."""
    keys = np.zeros(fields, np.int64)
    for side, numbers in _sides(features, common, fields):
        keys[numbers] = np.diff(side.offsets[:: side.rows])
    return keys


def batch_counts(features: Features | CommonFeatures, common: Common, fields: int) -> I64:
    """Keys and unique keys of each field in a batch, i64[2, F]; O(nnz)."""
    counts = np.zeros((2, fields), np.int64)
    for side, numbers in _sides(features, common, fields):
        bounds = side.offsets[:: side.rows].astype(np.int64)
        counts[0, numbers] = np.diff(bounds)
        counts[1, numbers] = np.diff(unique_segments(side.keys, bounds).bounds)
    return counts


def stats_of_batch(tables: Sequence[str], counts: I64, bytes_per_row: int) -> tuple[FieldStats, ...]:
    """Of `batch_counts`, summed over ranks: tables, the table of each field.

    A first batch has seen few of a table's rows in the end; that of a field with more of them has more. A key
    that several ranks or fields have counts as often.
    """
    rows: dict[str, int] = {}
    for table, unique in zip(tables, counts[1].tolist(), strict=True):
        rows[table] = rows.get(table, 0) + unique
    return stats_of(tables, counts[0].tolist(), {t: n * bytes_per_row for t, n in rows.items()})


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
