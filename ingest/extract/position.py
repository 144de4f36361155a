"""Places of impressions, computed from their rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.weights import nulls
from livectr.ingest.plan.position import PLACE, PLACES, ShownAt
from livectr.ingest.plan.weights import IN_RANGE

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Places:
    """Places of b impressions.

    Attributes:
        numbers: int64[b]; 0 where a row has none that can be used.
        wrong: sentence → bool[b], rows that cannot be used; mostly none.
    """

    numbers: I64
    wrong: dict[str, Mask]


class PlaceExtractor:
    """Computes places on the host; thread-safe.

    Args:
        shown: of a pipeline.
    """

    def __init__(self, shown: ShownAt) -> None:
        self._shown, self._extract = shown, Extractor(shown.plan)
        self._at = shown.plan.dense_names.index(PLACE), shown.plan.dense_names.index(IN_RANGE + PLACE)

    def __call__(self, rows: pa.RecordBatch) -> Places:
        """Places of b rows, which have at least the columns of the expression's roots."""
        dense, expr = self._extract(rows).dense, self._shown.expr
        missing = nulls(rows, expr)
        null = np.logical_or.reduce([np.zeros(rows.num_rows, np.bool_), *missing.values()])
        outside = (dense[:, self._at[1]] == 0) & ~null
        said = {
            f"{column}, which the position {expr} reads, is null; fill_null(column, value) stands in": mask
            for column, mask in missing.items()
        }
        said[f"the position {expr} is out of range; it is from 0 to {PLACES - 1}"] = outside
        numbers = np.where(null | outside, 0, dense[:, self._at[0]]).astype(np.int64)
        return Places(numbers, {sentence: mask for sentence, mask in said.items() if mask.any()})
