"""Small feature plan, and a batch of its columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from livectr.ingest import operators as op
from livectr.ingest.language.expr import ColumnRef, column
from livectr.ingest.plan.dag import FeaturePlan

ITEMS, AD = column(ColumnRef("t", "items"), "list<int32>"), column(ColumnRef("t", "ad"), "int64")
SMALL = FeaturePlan({"hour": op.hour(AD), "items": ITEMS * 2}, {"mean": op.mean(ITEMS)})
BATCH = pa.record_batch(
    {"t.ad": np.arange(3) * 10**7, "t.items": pa.array([[1], [], [2, 3]], pa.list_(pa.int32()))}
)
