"""Features of rows with shared columns, in the form of features without sharing."""

from __future__ import annotations

import numpy as np

from livectr.ingest.extract.sharing import SharedFeatures
from livectr.ingest.plan.features import Features


def written_out(found: SharedFeatures) -> Features:
    """All fields in the plan's order, with shared fields copied to each row."""
    fields = np.argsort([*found.shared_fields, *found.own_fields]).tolist()
    rows = found.own.rows
    shared = found.shared.take(np.zeros(rows, np.int64))
    whole = shared.merge(found.own, fields, range(found.own.dense.shape[1]))
    return Features(rows, whole.offsets, whole.keys, whole.dense, found.own.observed, found.own.failed)
