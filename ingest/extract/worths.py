"""Worths of labels, computed from rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.worths import Worths

F32 = npt.NDArray[np.float32]


class WorthExtractor:
    """Computes worths on the host; thread-safe.

    Args:
        worths: of a pipeline.
        plan: `worths.plan`, or that of rows of the look-up table.
        labels: whose worths are computed; one that is no part of the plan is 0.
    """

    def __init__(self, worths: Worths, plan: FeaturePlan, labels: Sequence[str]) -> None:
        given = worths.value.worths
        self._numbers = np.array(
            [each if isinstance(each := given[label], int | float) else 0.0 for label in labels], np.float32
        )
        self._places = [
            (t, plan.dense_names.index(label)) for t, label in enumerate(labels) if label in plan.dense
        ]
        self._extract = Extractor(plan) if self._places else None
        self.roots = plan.roots

    def __call__(self, rows: pa.RecordBatch) -> F32:
        """Worths f32[b, labels] of b rows, which have at least the columns of the roots.

        A null without a fill, a number that is not finite, and a negative one are worth nothing.
        """
        worths = self.without_rows(rows.num_rows)
        if self._extract is not None and rows.num_rows:
            dense = self._extract(rows).dense
            for t, place in self._places:
                worths[:, t] = np.maximum(dense[:, place], 0.0)
        return worths

    def without_rows(self, size: int) -> F32:
        """Worths f32[b, labels] of b examples as far as they are numbers; others are 0."""
        return np.tile(self._numbers, (size, 1))
