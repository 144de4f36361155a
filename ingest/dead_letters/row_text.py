"""Rows of Arrow batches as text, for dead letters."""

from __future__ import annotations

import base64
import json

import pyarrow as pa


def row_text(batch: pa.RecordBatch, row: int) -> bytes:
    """Encode a row as a JSON object; values without a JSON type become text, bytes become base64."""
    values = {name: _python(batch.column(i)[row]) for i, name in enumerate(batch.schema.names)}
    return json.dumps(values, default=_text, ensure_ascii=False).encode("utf-8", "replace")


def _python(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except Exception:  # a time in the year 292,277, nanoseconds
        return str(value.type)


def _text(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
