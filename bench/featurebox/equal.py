"""Are a peer's features ours? Numbers must be equal; keys must name the same values.

Our key of a string or a cross is a 64-bit hash, a peer's value the string or its own hash: on all rows that
are compared each of ours must stand for one of theirs and each of theirs for one of ours, and lists must be
as long, item for item in the same order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features

TOLERANCE = 1e-6
"""Tolerance of a dense number, relative and absolute: some sides compute in float32, some in double."""


def differences(plan: FeaturePlan, ours: Features, peer: Path) -> list[str]:
    """A sentence per feature that differs; empty when all are equal.

    peer: Parquet with `request_id`, in whose order its rows are the events of `ours`, and a column per
        feature.
    """
    table = pq.read_table(peer).sort_by("request_id").combine_chunks()
    if table.num_rows != ours.rows:
        return [f"{table.num_rows} rows in place of {ours.rows}"]
    found = []
    for index, (name, expr) in enumerate(plan.sparse.items()):
        offsets, keys = ours.field(index)
        lengths, values = _flat(table.column(name).chunk(0))
        if not np.array_equal(np.diff(offsets), lengths):
            row = int(np.flatnonzero(np.diff(offsets) != lengths)[0])
            found.append(f"{name}: {np.diff(offsets)[row]} values in place of {lengths[row]} in row {row}")
        elif expr.op not in ("key", "cross") and not pa.types.is_string(values.type):
            if not np.array_equal(keys, values.cast(pa.int64()).to_numpy()):
                found.append(f"{name}: other numbers")
        elif not _one_to_one(keys, values):
            found.append(f"{name}: keys and values do not match one to one")
    for index, name in enumerate(plan.dense):
        theirs = table.column(name).cast(pa.float32()).to_numpy()
        if not np.allclose(ours.dense[:, index], theirs, TOLERANCE, TOLERANCE):
            row = int(np.argmax(np.abs(ours.dense[:, index] - theirs)))
            found.append(f"{name}: {ours.dense[row, index]} in place of {theirs[row]} in row {row}")
    return found


def _flat(column: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """(values per row int64[B], the values); a null list is empty."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        return np.asarray(lengths.cast(pa.int64())), _narrow(column.flatten())
    return np.ones(len(column), np.int64), _narrow(column)


def _narrow(values: pa.Array) -> pa.Array:
    text = pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type)
    return values.cast(pa.string()) if text else values


def _one_to_one(keys: npt.NDArray[np.int64], values: pa.Array) -> bool:
    if values.null_count:
        return False
    codes = values.dictionary_encode().indices.to_numpy()
    pairs = np.unique(np.stack([keys, codes.astype(np.int64)]), axis=1).shape[1]
    return bool(pairs == len(np.unique(keys)) == len(np.unique(codes)))
