"""Labels of targets, computed from rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.weights import nulls
from livectr.ingest.language.targets import Target
from livectr.ingest.plan.dag import FeaturePlan

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_OTHER = "other: "


@dataclass(frozen=True)
class TargetLabels:
    """Labels of b rows.

    Attributes:
        bits: int64[b], bit t is 1 where target t came.
        wrong: sentence → bool[b], rows whose label is neither 0 nor 1; mostly none.
    """

    bits: I64
    wrong: dict[str, Mask]


class TargetExtractor:
    """Computes labels on the host; thread-safe.

    Args:
        targets: of a pipeline.

    Attributes:
        count: T, number of targets.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets, self.count = tuple(targets), len(targets)
        dense = {target.name: target.label == 1 for target in targets}
        dense |= {_OTHER + t.name: (t.label != 0) & (t.label != 1) for t in targets}
        plan = FeaturePlan({}, dense)
        self._extract = Extractor(plan)

    def __call__(self, rows: pa.RecordBatch) -> TargetLabels:
        """Labels of b rows, which have at least the columns of the labels' roots."""
        dense, count = self._extract(rows).dense > 0, self.count
        bits, wrong = np.zeros(rows.num_rows, np.int64), dict[str, Mask]()
        for t, target in enumerate(self._targets):
            bits |= dense[:, t].astype(np.int64) << t
            missing = nulls(rows, target.label).values()
            null = np.logical_or.reduce([np.zeros(rows.num_rows, np.bool_), *missing])
            said = {
                f"the label of target {target.name}, {target.label}, is null; "
                "fill_null(column, 0) says that it did not come": null,
                f"the label of target {target.name}, {target.label}, is neither 0 nor 1": dense[:, count + t]
                & ~null,
            }
            wrong |= {sentence: mask for sentence, mask in said.items() if mask.any()}
        return TargetLabels(bits, wrong)
