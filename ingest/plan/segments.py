"""Segment of each row: the key of a field that has one key for each example."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from livectr.ingest.plan.features import Features

I64 = npt.NDArray[np.int64]

NO_SEGMENT = int(np.iinfo(np.int64).min)
"""Segment of a row whose field is empty; 0 is the key of a number 0."""


def segments(features: Features, field: int) -> I64:
    """Key i64[B] of a field for each row; of several keys the first, of none NO_SEGMENT."""
    found = np.full(features.rows, NO_SEGMENT, np.int64)
    if features.rows:
        offsets, keys = features.field(field)
        filled = np.flatnonzero(offsets[1:] > offsets[:-1])
        found[filled] = keys[offsets[filled]]
    return found
