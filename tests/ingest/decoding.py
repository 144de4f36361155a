"""Helpers of the decoder tests: a stream with all types, a good event, and letters kept in memory."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from livectr.ingest.chunks import Chunk
from livectr.ingest.dead_letters.letters import DeadLetters, Reason, RecordPlace
from livectr.ingest.decode.decoder import Decoder
from livectr.ingest.decode.messages import MessageList
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table

COLUMNS = {
    "user_id": "int64",
    "ts": "int64",
    "query": "string",
    "price": "float32",
    "slot": "int32",
    "shown": "bool",
    "ids": "list<int64>",
    "thumb": "binary",
    "ctx": "string",
    "browser": "string",
    "zoom": "float64",
}
STREAM = Stream(
    "impressions",
    key="user_id",
    time="ts",
    columns=COLUMNS,
    json_fields={"browser": "ctx.device.browser", "zoom": "ctx.zoom"},
    fill={"price": 1.5},
)
USED = [name for name in COLUMNS if name != "ctx"]
GOOD: dict[str, Any] = {
    "user_id": 7,
    "ts": 1_700_000_000_000,
    "query": "schöne schuhe",
    "price": 2.5,
    "slot": 3,
    "shown": True,
    "ids": [1, -2],
    "thumb": base64.b64encode(b"\x00\xff").decode(),
    "ctx": json.dumps({"device": {"browser": "firefox", "os": 1}, "zoom": 2}),
    "unused": {"query": [1, {"a": None}]},
}
ROW = {
    **{name: GOOD[name] for name in ("user_id", "ts", "query", "price", "slot", "shown", "ids")},
    "thumb": b"\x00\xff",
    "browser": "firefox",
    "zoom": 2.0,
}


ARROW = {
    "user_id": pa.array([1, 2, 3], pa.int32()),
    "ts": pa.array([1000, 2000, 3000], pa.timestamp("us", "UTC")),
    "query": pa.array(["a", None, "c"]).dictionary_encode(),
    "price": pa.array([1.0, float("nan"), 2.0], pa.float64()),
    "slot": pa.array([1, 2, 3], pa.int64()),
    "shown": pa.array([True, False, None]),
    "ids": pa.array([[1], [], None], pa.large_list(pa.int32())),
    "thumb": pa.array([b"x", b"", None], pa.large_binary()),
    "ctx": pa.array(['{"zoom": 1}', "{}", None], pa.large_string()),
    "extra": pa.array([1, 2, 3]),
}


class Letters(DeadLetters):
    """Keeps its letters in memory."""

    def __init__(self) -> None:
        super().__init__(None)
        self.all: dict[tuple[int, int], tuple[Reason, str]] = {}

    def write(
        self,
        place: RecordPlace,
        reason: Reason,
        detail: str,
        value: bytes,
        *,
        rows: int = 1,
    ) -> None:
        super().write(place, reason, detail, value, rows=rows)
        offset, index = place[2:]
        assert (offset, index) not in self.all, "two letters for one record"
        self.all[offset, index] = reason, detail


def event(without: str = "", **changes: object) -> bytes:
    return json.dumps(
        {name: value for name, value in {**GOOD, **changes}.items() if name != without}
    ).encode()


def decode(
    values: Sequence[bytes | None], stream: Stream | Table = STREAM, **options: Any
) -> tuple[Chunk, Letters]:
    letters = Letters()
    decoder = Decoder(stream, letters, **{"columns": USED, **options})
    return decoder.messages(0, MessageList.of(range(100, 100 + len(values)), values)), letters


def arrow(columns: dict[str, Any] | pa.Table, schema: pa.Schema | None = None) -> bytes:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns, schema=schema)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()
