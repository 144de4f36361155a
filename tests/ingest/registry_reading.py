"""Reading a topic whose schemas are in a registry, and its dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from tests.ingest.reading import Read, assign, poll_until, to_end


def read_all(read: Read, stream: Stream | Table, url: str, letters: DeadLetters) -> list[dict[str, Any]]:
    source = read(stream, url=url, letters=letters)
    places = assign(source)
    source.start()
    return [row for chunk in to_end(source, places) for row in chunk.batch.to_pylist()]


def letters_in(folder: Path) -> list[tuple[int, str, str]]:
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    return sorted((letter["offset"], letter["reason"], letter["detail"]) for letter in found)


def until_rows(source: Any, count: int) -> int:
    """Poll until so many rows came, at least; returns their number."""
    return sum(map(len, poll_until(source, lambda chunks: sum(map(len, chunks)) >= count)))
