"""`livectr.features`: what a pipeline computes of rows in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.expr import is_vector, width_of
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.library.checkpoints import open_checkpoint
from livectr.library.counted_rows import counted_rows
from livectr.library.tables import root_columns, to_pipeline
from livectr.system.errors import ConfigError

BATCH_ROWS = 8_192
"""Rows that are extracted at once."""


def features(
    pipeline: Pipeline | str | Path,
    rows: Any,
    *,
    tables: Mapping[str, Any] | None = None,
    checkpoint: str | Path | None = None,
) -> pa.Table:
    """Compute the features of rows, as training and the servers do.

    Args:
        pipeline: a pipeline, or the path of its file.
        rows: n impressions: a pandas or Polars DataFrame, an Arrow table, a list of dicts, a dict of columns,
            or the path of a Parquet file. Times are epoch milliseconds or timestamps.
        tables: topic of a look-up table → its rows, of the same kinds; the last row of a key counts. Without
            a table its columns are taken from `rows`.
        checkpoint: where running statistics (`zscore`, `frequency`, …) and counters come from; None: nothing
            is known yet.

    Returns:
        n rows: a sparse feature is list<int64>, its keys; a dense feature is float32, or a list of them of
        fixed size. Columns are in the pipeline's order, sparse features first.

    Raises:
        ConfigError: a column is missing, or a value does not fit.

    Example:
        >>> livectr.features(pipeline, [{"user_id": 7, "page": "home"}]).column("page")
    """
    pipeline = to_pipeline(pipeline)
    statistics, counted = None, dict[str, pa.Table]()
    if checkpoint is not None:
        with open_checkpoint(checkpoint, pipeline) as restored:
            counted = counted_rows(pipeline, restored)
            statistics = Statistics(pipeline.plan).load(restored.statistics())
    columns = root_columns(pipeline, rows, {**counted, **(tables or {})})
    parts = [_table(pipeline.plan, features) for features in extracted(pipeline.plan, columns, statistics)]
    return pa.concat_tables(parts)


def extracted(
    plan: FeaturePlan, columns: pa.RecordBatch, statistics: Statistics | None
) -> Iterator[Features]:
    """Features of at most BATCH_ROWS rows at a time, once at least.

    Raises ConfigError for a row that cannot be extracted.
    """
    extract = Extractor(plan)
    for start in range(0, max(columns.num_rows, 1), BATCH_ROWS):
        features = extract(columns.slice(start, BATCH_ROWS), statistics)
        if features.failed.any():
            row = start + int(np.argmax(features.failed))
            raise ConfigError(f"row {row}: a feature has too many values, or strings that are too long")
        yield features


def _table(plan: FeaturePlan, features: Features) -> pa.Table:
    """The features of a batch as Arrow columns."""
    arrays: dict[str, Any] = {}
    for number, name in enumerate(plan.sparse):
        offsets, keys = features.field(number) if features.rows else (np.zeros(1, np.int32), features.keys)
        arrays[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(keys))
    at = 0
    for name, node in plan.dense.items():
        width = width_of(node) if is_vector(node) else 1
        block = pa.array(features.dense[:, at : at + width].ravel())
        arrays[name] = pa.FixedSizeListArray.from_arrays(block, width) if is_vector(node) else block
        at += width
    return pa.table(arrays)
