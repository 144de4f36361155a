"""Messages of a topic in mixed formats: JSON objects and Arrow batches."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from tests.ingest.joined_logs import Log


def messages(log: Log) -> Iterator[bytes]:
    """Records as JSON messages and, every now and then, five of them in one Arrow message."""
    while log:
        size = 5 if len(log) % 3 == 0 else 1
        piece, log = log[:size], log[size:]
        if size == 1:
            yield json.dumps(piece[0]).encode()
        else:
            batch = pa.RecordBatch.from_pylist(piece)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield sink.getvalue().to_pybytes()
