"""Values of targets that came, computed from rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.weights import nulls
from livectr.ingest.language.labels import labels_of
from livectr.ingest.language.targets import Target
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.weights import IN_RANGE, within

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LEAST, LARGEST = 1e-9, 1e12
"""Bounds of values above 0."""


@dataclass(frozen=True)
class TargetValues:
    """Values of b rows.

    Attributes:
        numbers: f32[b, V] of the V targets with values; NaN where a target did not come, is not known, or has
            no value that can be used.
        wrong: sentence → bool[b], rows that cannot be used; mostly none.
    """

    numbers: F32
    wrong: dict[str, Mask]


class ValueExtractor:
    """Computes values on the host; thread-safe.

    Args:
        targets: of a pipeline; some have values.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._count = len(targets)
        self._valued = [
            (t, target, target.value) for t, target in enumerate(targets) if target.value is not None
        ]
        dense = {target.name: value for _, target, value in self._valued}
        for _, target, value in self._valued:
            inside = within(value, LEAST, LARGEST)
            dense[IN_RANGE + target.name] = inside | (value == 0) if target.values == "ziln" else inside
        self._extract = Extractor(FeaturePlan({}, dense))
        self._places = {name: place for place, name in enumerate(dense)}

    def __call__(self, rows: pa.RecordBatch, words: I64) -> TargetValues:
        """Values of b rows.

        Args:
            rows: with at least the columns of the values' roots.
            words: int64[b], labels of all targets (`ingest.language.labels.word`).
        """
        dense, came = self._extract(rows).dense, labels_of(words, self._count) == 1
        numbers = np.full((rows.num_rows, len(self._valued)), np.nan, np.float32)
        wrong = dict[str, Mask]()
        for place, (t, target, value) in enumerate(self._valued):
            missing = nulls(rows, value).values()
            null = np.logical_or.reduce([np.zeros(rows.num_rows, np.bool_), *missing])
            inside = dense[:, self._places[IN_RANGE + target.name]] > 0
            what = f"the value of target {target.name}, {value}"
            cure = 'a lognormal value is above 0 (values="ziln" takes 0, too)'
            cure = "it is at least 0" if target.values == "ziln" else cure
            said = {
                f"{what}, is null; fill_null(column, value) stands in": null & came[:, t],
                f"{what}, is out of range or no number; {cure}": ~null & ~inside & came[:, t],
            }
            wrong |= {sentence: mask for sentence, mask in said.items() if mask.any()}
            good = came[:, t] & ~null & inside
            numbers[good, place] = dense[good, self._places[target.name]]
        return TargetValues(numbers, wrong)
