"""Row filters: the `where` condition of a stream, compiled like a feature."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.roots import roots_of
from livectr.ingest.plan.dag import FeaturePlan


class RowFilter:
    """Compiled bool expression over a stream's columns, evaluated for whole batches.

    Args:
        condition: expression of type bool.
    """

    def __init__(self, condition: Expr) -> None:
        self.condition = condition
        self.roots = roots_of(condition)

    @cached_property
    def _extractor(self) -> Extractor:
        return Extractor(FeaturePlan({"keep": self.condition}))

    def compile(self) -> None:
        """Compile the condition now, not with the first batch."""
        _ = self._extractor

    def __call__(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Evaluate for a batch with plain column names ("ts", not "impressions.ts"): bool[rows]."""
        arrays = [batch.column(root.ref.column) for root in self.roots]
        if not arrays:
            return np.full(batch.num_rows, bool(self.condition.params[0]))
        named = pa.RecordBatch.from_arrays(arrays, names=[root.name for root in self.roots])
        return np.not_equal(self._extractor(named).keys, 0)
