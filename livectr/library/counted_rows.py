"""Rows of a checkpoint's counters, as tables."""

from __future__ import annotations

import pyarrow as pa

from livectr.ingest.join.counters import Counters
from livectr.ingest.language.counts import KEY, ROW
from livectr.ingest.pipeline import Pipeline
from livectr.trainer.checkpoint.restored import Restored


def counted_rows(pipeline: Pipeline, restored: Restored) -> dict[str, pa.Table]:
    """Name of each table of counters → rows by key.

    Raises:
        MismatchError: the checkpoint belongs to another pipeline.
    """
    counters = Counters(pipeline)
    if not counters:
        return {}
    counters.load(restored.state("counters"))
    found = {}
    for topic, rows in counters.rows.items():
        keys, texts = rows.counters.changed()
        found[topic] = pa.table({KEY: pa.array(keys), ROW: pa.array(texts.texts(), pa.binary())})
    return found
