"""Labels of targets, computed from rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.weights import nulls
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.labels import word
from livectr.ingest.language.targets import Target
from livectr.ingest.plan.dag import FeaturePlan

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_OTHER = "other: "


@dataclass(frozen=True)
class TargetLabels:
    """Labels of b rows.

    Attributes:
        words: int64[b], as of `ingest.language.labels.word`.
        wrong: sentence → bool[b], rows whose label is neither 0 nor 1; mostly none.
    """

    words: I64
    wrong: dict[str, Mask]


class TargetExtractor:
    """Computes labels on the host; thread-safe.

    Args:
        targets: of a pipeline.

    Attributes:
        count: T, number of targets.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self.count = len(targets)
        self._columns = [
            (t, target.name, target.label) for t, target in enumerate(targets) if target.label is not None
        ]
        dense: dict[str, Expr] = {name: label == 1 for _, name, label in self._columns}
        dense |= {_OTHER + name: (label != 0) & (label != 1) for _, name, label in self._columns}
        self._extract = Extractor(FeaturePlan({}, dense)) if dense else None

    def __call__(self, rows: pa.RecordBatch, again: Mask, words: I64 | None) -> TargetLabels:
        """Labels of b rows.

        Args:
            rows: with at least the columns of the labels' roots.
            again: bool[b], rows that were examples before, and then had the labels of their columns.
            words: int64[b], labels of streams of their own; None: there are none.
        """
        words = np.zeros(rows.num_rows, np.int64) if words is None else words.copy()
        wrong = dict[str, Mask]()
        dense: Mask = np.empty((rows.num_rows, 0), np.bool_)
        if self._extract is not None:
            dense = self._extract(rows).dense > 0
        for place, (t, name, label) in enumerate(self._columns):
            words |= np.where(again, 0, word(dense[:, place], t))
            missing = nulls(rows, label).values()
            null = np.logical_or.reduce([np.zeros(rows.num_rows, np.bool_), *missing])
            said = {
                f"the label of target {name}, {label}, is null; "
                "fill_null(column, 0) says that it did not come": null,
                f"the label of target {name}, {label}, is neither 0 nor 1": dense[
                    :, len(self._columns) + place
                ]
                & ~null,
            }
            wrong |= {sentence: mask for sentence, mask in said.items() if mask.any()}
        return TargetLabels(words, wrong)
