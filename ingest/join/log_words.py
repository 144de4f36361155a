"""Words of a pipeline on which the state of a partition depends: a run continues where they are the same."""

from __future__ import annotations

from typing import Any

from livectr.ingest.pipeline import Pipeline

LOG = "log"
"""Name, in the state of a partition, of these words."""


def log_words(pipeline: Pipeline) -> dict[str, Any]:
    """Name → value, as JSON types, of what decides the sequence of a pipeline's examples."""
    view = pipeline.log
    filters = [stream.filter for stream in pipeline.streams]
    labels = [
        [
            label.name,
            label.window_ms,
            *label.columns(view.on),
            *([label.delayed, label.leaves_ms] if label.provisional else []),
        ]
        for label in view.more_labels
    ]
    return {
        "topics": [stream.topic for stream in pipeline.streams],
        "key": [stream.key for stream in pipeline.streams],
        "time": [stream.time for stream in pipeline.streams],
        "where": [None if condition is None else condition.meaning for condition in filters],
        "on": list(view.on),
        "window_ms": view.window_ms,
        "wait_ms": view.leaves_ms,
        "delayed": view.delayed,
        "label": view.label_column,
        "dedup": list(view.dedup),
        "dedup_ms": view.dedup_ms,
        "clock_slack_ms": view.clock_slack_ms,
        **({"labels": labels} if labels else {}),
    }
