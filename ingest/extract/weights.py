"""Weights of examples, computed from their rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language.expr import ColumnRef, Expr
from livectr.ingest.language.roots import roots_of
from livectr.ingest.plan.weights import IN_RANGE, LARGEST_WEIGHT, LEAST_RATE, RATE, WEIGHT, ExampleWeights

F32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Weights:
    """Weights of b examples.

    Attributes:
        values: f32[b, 2], weight and sampling rate; 1 where a row has none that can be used.
        wrong: sentence → bool[b], rows that cannot be used; mostly none.
    """

    values: F32
    wrong: dict[str, Mask]

    @property
    def failed(self) -> Mask:
        """bool[b], rows that cannot be used."""
        failed = np.zeros(len(self.values), np.bool_)
        for mask in self.wrong.values():
            failed |= mask
        return failed


def counts_of(weights: F32, label: F32) -> F32:
    """Examples f32[n] of the whole log that rows stand for: w, and w / r without a click.

    Args:
        weights: f32[n, 2], weight w and rate r of each row.
        label: f32[n] in {0, 1}.
    """
    counts: F32 = np.where(label > 0.5, weights[:, 0], weights[:, 0] / weights[:, 1])
    return counts


class WeightExtractor:
    """Computes weights on the host; thread-safe.

    Args:
        weights: of a pipeline.
    """

    def __init__(self, weights: ExampleWeights) -> None:
        self._weights = weights
        self._places = {name: i for i, name in enumerate(weights.plan.dense_names)}
        self._extract = Extractor(weights.plan) if weights.plan.outputs else None

    def __call__(self, rows: pa.RecordBatch) -> Weights:
        """Weights of b rows, which have at least the columns of the weights' roots."""
        values = np.ones((rows.num_rows, 2), np.float32)
        if not isinstance(self._weights.sampling, Expr) and self._weights.sampling is not None:
            values[:, 1] = self._weights.sampling
        wrong: dict[str, Mask] = {}
        if self._extract is not None:
            dense = self._extract(rows).dense
            for place, name, expr, cure in (
                (0, WEIGHT, self._weights.weight, f"a weight is from 0 to {LARGEST_WEIGHT:g}"),
                (1, RATE, self._weights.rate, f"a rate is from {LEAST_RATE:g} to 1"),
            ):
                if expr is None:
                    continue
                what = f"the {'weight' if name == WEIGHT else 'sampling rate'} {expr}"
                missing = nulls(rows, expr)
                null = np.logical_or.reduce([np.zeros(rows.num_rows, np.bool_), *missing.values()])
                outside = (dense[:, self._places[IN_RANGE + name]] == 0) & ~null
                said = {
                    f"{column}, which {what} reads, is null; fill_null(column, value) stands in": mask
                    for column, mask in missing.items()
                }
                said[f"{what} is out of range or no number; {cure}"] = outside
                wrong |= {sentence: mask for sentence, mask in said.items() if mask.any()}
                values[:, place] = np.where(null | outside, 1, dense[:, self._places[name]])
        return Weights(values, wrong)


def nulls(rows: pa.RecordBatch, expr: Expr) -> dict[str, Mask]:
    """Columns of an expression that are null, and have no fill → bool[b], where they are."""
    null: dict[str, Mask] = {}
    for root in roots_of(expr):
        column = rows.column(root.name)
        if isinstance(root.ref, ColumnRef) and root.ref.fill is None and column.null_count:
            null[str(root)] = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
    return null
