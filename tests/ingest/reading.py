"""Helpers of the source tests: a small stream, and reading a source to its end."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from livectr.ingest.chunks import BEGINNING, Chunk, Position
from livectr.ingest.language.streams import Stream
from livectr.ingest.sources.source import Source
from tests.waiting import until

DEADLINE_S = 60.0

Send = Callable[..., None]
"""Fixture `send`."""
Read = Callable[..., Source]
"""Fixture `read`."""

Row = tuple[int, int, int]  # offset, index, user_id


def stream(topic: str, **options: Any) -> Stream:
    columns = {"user_id": "int64", "ts": "int64", "page": "string"}
    return Stream(topic, key="user_id", time="ts", columns=columns, **options)


def event(user_id: int) -> bytes:
    return json.dumps({"user_id": user_id, "ts": 1000 + user_id, "page": f"p{user_id}", "more": [1]}).encode()


def arrow(users: Sequence[int]) -> bytes:
    batch = pa.RecordBatch.from_pydict(
        {
            "user_id": list(users),
            "ts": list(users),
            "page": [f"p{user}" for user in users],
            "more": [1] * len(users),
        }
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def assign(
    source: Source, positions: Mapping[tuple[str, int], Position] | None = None
) -> list[tuple[str, int]]:
    """Assign every partition, by default from the beginning."""
    places = [(topic, partition) for topic, parts in source.topics().items() for partition in parts]
    source.assign({place: (positions or {}).get(place, BEGINNING) for place in places})
    return places


def poll_until(source: Source, done: Callable[[list[Chunk]], bool]) -> list[Chunk]:
    """Poll until `done` is true for all chunks so far."""
    chunks: list[Chunk] = []
    until(
        lambda: done(chunks),
        "chunks",
        turn=lambda: chunks.extend(source.poll(0.1)),
        why=lambda: f"there are {len(chunks)}",
    )
    return chunks


def to_end(source: Source, places: Iterable[tuple[str, int]]) -> list[Chunk]:
    """Read to the end of `places`; a source may report the end only after it returned every record."""
    places = list(places)
    return poll_until(source, lambda _: all(source.at_end(*place) for place in places))


def rows(chunks: Iterable[Chunk], place: tuple[str, int]) -> list[Row]:
    """(offset, index, user_id) of a partition's rows, in order of arrival."""
    found: list[Row] = []
    for chunk in chunks:
        if (chunk.topic, chunk.partition) == place:
            users = chunk.batch["user_id"].to_pylist()
            found += zip(chunk.offset.tolist(), chunk.index.tolist(), users, strict=True)
            assert all((offset, index) < (chunk.next.offset, chunk.next.index) for offset, index, _ in found)
    return found
