"""Workload of the GPU's benchmarks: the 200 features of `bench featurebox`, on random columns."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from bench.featurebox.pipeline import pipeline
from bench.features import rows_of
from livectr.ingest.pipeline import Pipeline
from livectr.models import DeepFM

NAME = "200 features"
MODEL = DeepFM(dim=16, hidden=(256, 128))
WIDE: Pipeline = replace(pipeline, rank=MODEL)
PART = 1024
"""Rows that differ; a batch is copies of them, since random rows take longer to make than to extract."""


def batch_of(pipeline: Pipeline, rows: int, part: int = PART, seed: int = 1) -> pa.RecordBatch:
    """Batch of random columns, of about `rows` rows: whole copies of a part."""
    once = rows_of(pipeline, min(rows, part), seed)
    return pa.concat_batches([once] * max(1, rows // once.num_rows))
